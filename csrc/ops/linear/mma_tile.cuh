// The parts of a matrix product input @ weight^T with 16-bit weights, shared by linear and fc_norm: tile shapes, the
// way along K, copies into shared memory, fragments.
//
// A block computes a tile of kRows x kColumns outputs and walks along K in steps of kDepth through a ring of kStages
// stages in shared memory, filled by cp.async kStages - 1 steps ahead. Activations arrive as float32 and are rounded to
// the weight's type when fragments are made, so memory holds no second copy of them.
//
// Bank conflicts: none, by exclusive-or with the row.
//   Weights: ldmatrix reads 16 bytes of eight rows at once. Rows are 128 bytes (kDepth 64) or 64 (kDepth 32), so
//   16-byte chunk c of row r lies at c ^ r % 8, or c ^ r / 2 % 4, and eight rows cover all 32 banks. Activations: half
//   a warp reads 8 bytes of four threads each in four rows. Rows are multiples of 128 bytes, so float k of row r lies
//   at k ^ r % 4 * 8: four rows cover all 32 banks.
#pragma once

#include <type_traits>

#include "device/cuda/ptx.cuh"
#include "ops/linear/packed_weight.h"

namespace eagle31rt::cuda {

// Of a quantised weight (mma_codes.cuh), whose first strip MatrixProduct.weight points at.
struct QuantisedStrips {
  int64_t strip_bytes;
  int64_t scales_offset;  // of the scales in a strip
  int32_t group_size;
  ScaleType scale;
};

// One matrix product as the kernels take it. K is cut into segments of segment_size, each one accumulation chain.
struct MatrixProduct {
  const float* input;        // [num_rows, input_stride]
  const float* norm_weight;  // [in_features]; fc_norm only
  const void* weight;        // [out_features, weight_stride], zero from in_features on
  const float* bias;         // [out_features] or null
  const float* residual;     // [num_rows, output_stride] or null; may be the same memory as output
  float* output;             // [gridDim.z, num_rows, output_stride]
  int64_t num_rows;
  int64_t input_stride;
  int64_t weight_stride;  // multiple of 64
  int64_t output_stride;
  int32_t in_features;
  int32_t out_features;
  int32_t segment_size;  // linear: multiple of 64; fc_norm: the norm's width, any
  int32_t block_depth;   // of K, for one block: blockIdx.z * block_depth is its first k; whole segments
  bool vector_copies;    // rows, norm weight and segments start at multiples of 16 bytes
  bool vector_stores;    // output and residual rows start at multiples of 8 bytes
  float epsilon;         // fc_norm only
  QuantisedStrips strips = {};
};

template <int rows, int columns, int warp_rows, int warp_columns, int depth, int stages>
struct TileShape {
  static constexpr int kRows = rows;
  static constexpr int kColumns = columns;
  static constexpr int kDepth = depth;
  static constexpr int kStages = stages;
  static constexpr int kWarpRows = warp_rows;
  static constexpr int kWarpColumns = warp_columns;
  static constexpr int kWarpsAlongColumns = columns / warp_columns;
  static constexpr int kThreads = kWarpSize * (rows / warp_rows) * kWarpsAlongColumns;
  static constexpr int kRowBlocks = warp_rows / 16;       // matrix instructions of a warp along rows
  static constexpr int kColumnBlocks = warp_columns / 8;  // and along columns
  static_assert(depth == 64 || depth == 32, "the exclusive-or patterns know these two");
  static_assert(warp_rows % 16 == 0 && warp_columns % 16 == 0 && rows % warp_rows == 0 && columns % warp_columns == 0);
};

template <typename Tile>
struct alignas(128) ActivationStage {
  float activations[Tile::kRows * Tile::kDepth];
};

template <typename Tile>
struct alignas(128) Stage : ActivationStage<Tile> {
  uint16_t weights[Tile::kColumns * Tile::kDepth];
};

template <typename Tile>
struct alignas(128) NormStage : Stage<Tile> {
  float norm_weight[Tile::kDepth];
};

template <typename Tile>
E31_DEVICE int activation_offset(int row, int k) {
  return row * Tile::kDepth + (k ^ (row % 4 * 8));
}

template <typename Tile>
E31_DEVICE int weight_offset(int row, int chunk) {
  return row * Tile::kDepth + 8 * (chunk ^ (Tile::kDepth == 64 ? row % 8 : row / 2 % 4));
}

// Where along K a block stands: a tile of kDepth at a multiple of kDepth, and the segment that it works for. A tile
// that holds the end of one segment and the start of the next is visited for both.
struct Cursor {
  int k;
  int segment_begin;
  int segment_end;
  int stop;

  E31_DEVICE Cursor(const MatrixProduct& product, int depth) {
    segment_begin = static_cast<int>(blockIdx.z) * product.block_depth;
    stop = min(product.in_features - segment_begin, product.block_depth) + segment_begin;
    segment_end = min(stop - segment_begin, product.segment_size) + segment_begin;
    k = segment_begin / depth * depth;
  }
  E31_DEVICE bool done() const { return segment_begin >= stop; }
  E31_DEVICE bool ends_segment(int depth) const { return k + depth >= segment_end; }
  E31_DEVICE bool contains(int position) const { return position >= segment_begin && position < segment_end; }
  E31_DEVICE void advance(int depth, int segment_size) {
    if (!ends_segment(depth)) {
      k += depth;
      return;
    }
    segment_begin = segment_end;
    segment_end = min(stop - segment_begin, segment_size) + segment_begin;
    k = segment_begin / depth * depth;
  }
};

// Which part of a block's tile a thread works on, after the fragments of mma.m16n8k16. Rows and columns of a warp start
// at multiples of 16, so the exclusive-or depends on the lane alone and costs one instruction for each k.
template <typename Tile>
struct Position {
  int row;     // of accumulators d[0] and d[1] of the first matrix instruction; d[2] and d[3] lie 8 rows below
  int column;  // of d[0]
  int pair;    // 2 * (lane % 4): first column of the thread's pairs of A
  int weight_row;
  int weight_chunk;

  E31_DEVICE Position() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int warp_column = warp % Tile::kWarpsAlongColumns * Tile::kWarpColumns;
    pair = lane % 4 * 2;
    row = warp / Tile::kWarpsAlongColumns * Tile::kWarpRows + lane / 4;
    column = warp_column + pair;
    weight_row = warp_column + lane / 16 * 8 + lane % 8;
    weight_chunk = lane / 8 % 2;
  }

  // Floats k and k + 1 of row + row_offset (a multiple of 8); zeros for rows past the tile. k: the thread's pair in the
  // eight from first_k on.
  E31_DEVICE float2 activations(const ActivationStage<Tile>& stage, int row_offset, int first_k, int num_rows) const {
    if (row + row_offset >= num_rows) return {0.0f, 0.0f};
    const int offset = activation_offset<Tile>(row, first_k + pair) + row_offset * Tile::kDepth;
    return *reinterpret_cast<const float2*>(stage.activations + offset);
  }

  // The B fragments of the 16 columns from column_offset (a multiple of 16) of the warp on, and of 16 k from 16 * step
  // on: registers 0, 1 belong to the first eight columns, 2, 3 to the others.
  E31_DEVICE void weights(const Stage<Tile>& stage, int column_offset, int step, uint32_t (&fragments)[4]) const {
    const int offset = weight_offset<Tile>(weight_row, 2 * step + weight_chunk) + column_offset * Tile::kDepth;
    ldmatrix_x4(fragments, stage.weights + offset);
  }
};

// Copies what a block needs of its rows and columns. Each thread copies the same positions of every tile of K.
template <typename Element, typename Tile>
struct TileSource {
  const float* input;
  const float* norm_weight;
  const Element* weight;
  int64_t input_stride;
  int64_t weight_stride;
  int num_rows;     // of this tile, kRows or fewer
  int num_columns;  // kColumns or fewer
  bool vector_copies;

  E31_DEVICE TileSource(const MatrixProduct& product, int64_t first_row) {
    const int64_t first_column = static_cast<int64_t>(blockIdx.y) * Tile::kColumns;
    input_stride = product.input_stride;
    weight_stride = product.weight_stride;
    input = product.input + first_row * input_stride;
    norm_weight = product.norm_weight;
    weight = static_cast<const Element*>(product.weight) + first_column * weight_stride;
    num_rows = static_cast<int>(min(product.num_rows - first_row, int64_t{Tile::kRows}));
    num_columns = static_cast<int>(min(product.out_features - first_column, int64_t{Tile::kColumns}));
    vector_copies = product.vector_copies;
  }

  // Weight rows past the matrix become zeros. Eight (or four) neighbouring threads copy one row's 128 (or 64) bytes.
  E31_DEVICE void copy_weights(uint16_t* target, int k) const {
    constexpr int kChunks = Tile::kDepth / 8;
#pragma unroll
    for (int first = 0; first < Tile::kColumns * kChunks; first += Tile::kThreads) {
      const int row = (first + static_cast<int>(threadIdx.x)) / kChunks;
      const int chunk = static_cast<int>(threadIdx.x) % kChunks;
      const bool valid = row < num_columns;
      cp_async_16(target + weight_offset<Tile>(row, chunk), weight + (valid ? row : 0) * weight_stride + k + 8 * chunk,
                  valid);
    }
  }

  // kWidth (4 or 1) floats a copy. Positions outside the segment become zeros; rows past the tile are left alone, for
  // nobody reads them.
  template <int kWidth>
  E31_DEVICE void copy_activations(float* target, const Cursor& cursor) const {
    constexpr int kCopies = Tile::kDepth / kWidth;
#pragma unroll(kWidth == 4 ? 4 : 1)
    for (int first = 0; first < Tile::kRows * kCopies; first += Tile::kThreads) {
      const int row = (first + static_cast<int>(threadIdx.x)) / kCopies;
      const int position = static_cast<int>(threadIdx.x) % kCopies * kWidth;
      if (row < num_rows)
        copy_floats<kWidth>(target + activation_offset<Tile>(row, position), input + row * input_stride, cursor,
                            position);
    }
  }

  template <int kWidth>
  E31_DEVICE void copy_norm_weight(float* target, const Cursor& cursor) const {
    const int position = static_cast<int>(threadIdx.x) * kWidth;
    if (position < Tile::kDepth) copy_floats<kWidth>(target + position, norm_weight, cursor, position);
  }

  E31_DEVICE void copy_rows(ActivationStage<Tile>& stage, const Cursor& cursor) const {
    if (vector_copies) {
      copy_activations<4>(stage.activations, cursor);
    } else {
      copy_activations<1>(stage.activations, cursor);
    }
  }

  E31_DEVICE void copy(Stage<Tile>& stage, const Cursor& cursor) const {
    copy_weights(stage.weights, cursor.k);
    copy_rows(stage, cursor);
  }

  E31_DEVICE void copy(NormStage<Tile>& stage, const Cursor& cursor) const {
    static_assert(Tile::kThreads >= Tile::kDepth, "a thread copies one float of the norm weight");
    copy(static_cast<Stage<Tile>&>(stage), cursor);
    if (vector_copies) {
      copy_norm_weight<4>(stage.norm_weight, cursor);
    } else {
      copy_norm_weight<1>(stage.norm_weight, cursor);
    }
  }

  // The B fragments of 16 columns and 16 k, as of Position.
  E31_DEVICE void weights(const Stage<Tile>& stage, const Position<Tile>& position, int column_offset, int step,
                          uint32_t (&fragments)[4]) const {
    position.weights(stage, column_offset, step, fragments);
  }

 private:
  template <int kWidth>
  E31_DEVICE static void copy_floats(float* target, const float* source, const Cursor& cursor, int position) {
    const bool valid = cursor.contains(cursor.k + position);
    const float* from = source + (valid ? cursor.k + position : 0);
    if constexpr (kWidth == 4) {
      cp_async_16(target, from, valid);
    } else {
      cp_async_4(target, from, valid);
    }
  }
};

}  // namespace eagle31rt::cuda
