// How linear divides its work on CUDA: pure functions of the shape.
//
// K is cut into segments that depend on (N, K) alone. A segment is one accumulation chain in ascending k, and an output
// is segment 0 + segment 1 + ... in that order. That is the arithmetic. Who computes what is another matter and may
// depend on the number of rows: either one block adds up all segments of its tile, or each segment has a block of its
// own and a second kernel adds the partial sums. Both give the same bits.
#pragma once

#include <cstdint>

namespace eagle31rt::cuda {

// Multiprocessors that a grid should fill: H100 and H200. An A100 has 108, a B200 148.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kSegmentAlignment = 64;  // weight rows are padded to this, so a tile of K never straddles segments
constexpr int64_t kMinSegmentSize = 512;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class LinearTile {
  kRows16,  // 16 x 64 outputs: decode and verification
  kRows64,  // 64 x 128: many rows
};

struct LinearConfig {
  LinearTile tile;
  int64_t segment_size;  // multiple of kSegmentAlignment
  int64_t num_segments;
  bool spread;  // one segment a block, partial sums through the workspace
  int64_t num_row_tiles;
  int64_t num_column_tiles;

  int64_t num_blocks() const { return num_row_tiles * num_column_tiles * (spread ? num_segments : 1); }
  // Columns of a row of partial sums: whole tiles, so that storing them needs no tail.
  int64_t partial_stride() const { return num_column_tiles * (tile == LinearTile::kRows16 ? 64 : 128); }
};

// Enough segments that tiles of 64 x 128 occupy every multiprocessor, none shorter than 512: a partial sum costs
// 8 bytes a row to write and read, a segment's weights 1024 bytes, so at 16 rows 12 % of the traffic at the very most.
constexpr int64_t linear_segment_size(int64_t out_features, int64_t in_features) {
  const int64_t most = in_features / kMinSegmentSize;
  const int64_t wanted = divide_up(kMultiprocessors, divide_up(out_features, 128));
  const int64_t count = wanted < most ? wanted : most;
  return count <= 1 ? divide_up(in_features, kSegmentAlignment) * kSegmentAlignment
                    : divide_up(divide_up(in_features, kSegmentAlignment), count) * kSegmentAlignment;
}

// Up to 16 rows the weights are the traffic, and 64 columns a block give twice the blocks. Above, a tile of 64 rows:
// its arithmetic takes less time than its weights up to about 64 x 4 rows, so padding 17 rows to 64 costs nothing.
// Segments are spread while tiles alone leave multiprocessors idle: below two blocks each for the small tile; for the
// large one, whose partial sums weigh more, below one for every two.
constexpr LinearConfig choose_linear_config(int64_t num_rows, int64_t out_features, int64_t in_features) {
  LinearConfig config{};
  const bool small = num_rows <= 16;
  config.tile = small ? LinearTile::kRows16 : LinearTile::kRows64;
  config.segment_size = linear_segment_size(out_features, in_features);
  config.num_segments = divide_up(in_features, config.segment_size);
  config.num_row_tiles = divide_up(num_rows, small ? 16 : 64);
  config.num_column_tiles = divide_up(out_features, small ? 64 : 128);
  const int64_t enough_tiles = small ? 2 * kMultiprocessors : kMultiprocessors / 2;
  config.spread = config.num_segments > 1 && config.num_row_tiles * config.num_column_tiles < enough_tiles;
  return config;
}

}  // namespace eagle31rt::cuda
