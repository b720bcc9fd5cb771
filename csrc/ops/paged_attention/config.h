// How CUDA attention is cut into blocks. None of it changes a bit of the result: a query's arithmetic depends on its
// own logical positions only (cuda.cu), so tiles and grid follow speed.
#pragma once

#include <cstdint>

#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt {

// Splits are folded one after the other inside a range, ranges (from position 0) are merged in ascending order.
constexpr int32_t kSplitsPerRange = 8;
constexpr int32_t kAttentionRange = kSplitsPerRange * kAttentionSplit;

struct AttentionShape {
  int64_t num_rows;
  int64_t num_requests;
  int32_t num_kv_heads;
  int32_t group;        // query heads per KV head
  int32_t value_dim;    // elements of an output row of one head
  int64_t max_length;   // positions that the page table has room for
  int32_t max_queries;  // of a tile, a power of two from 16 on: what the kernel's shared memory holds
  int32_t num_multiprocessors;
};

struct AttentionConfig {
  int32_t tile_queries;  // 16, 32 or 64 (row, head) pairs
  int32_t heads_per_tile;
  int32_t head_blocks;  // tiles per group
  int32_t rows_per_tile;
  int64_t num_tiles;   // request i owns tiles row_begin[i] / rows_per_tile + i and those after it
  int32_t num_ranges;  // 1: a block takes all ranges of its tile; else one range each, merged by a second kernel
  int64_t workspace_bytes;
};

constexpr int64_t kMaxAttentionWorkspace = int64_t{256} << 20;

// The smallest tile that holds the rows of an average request; ranges spread over the grid while the GPU is not full
// (two blocks a multiprocessor) and their partial results fit into kMaxAttentionWorkspace.
constexpr AttentionConfig attention_config(const AttentionShape& shape) {
  AttentionConfig config{};
  const int64_t rows = (shape.num_rows + shape.num_requests - 1) / shape.num_requests;
  config.tile_queries = 16;
  while (config.tile_queries < shape.max_queries && config.tile_queries < rows * shape.group) config.tile_queries *= 2;
  config.heads_per_tile = shape.group < config.tile_queries ? shape.group : config.tile_queries;
  config.head_blocks = (shape.group + config.heads_per_tile - 1) / config.heads_per_tile;
  config.rows_per_tile = config.tile_queries / config.heads_per_tile;
  config.num_tiles = shape.num_rows / config.rows_per_tile + shape.num_requests;
  const int64_t ranges = (shape.max_length + kAttentionRange - 1) / kAttentionRange;
  const int64_t blocks = config.num_tiles * shape.num_kv_heads * config.head_blocks;
  const int64_t queries = shape.num_rows * shape.num_kv_heads * shape.group;
  const int64_t bytes = queries * ranges * (shape.value_dim + 2) * static_cast<int64_t>(sizeof(float));
  const bool spread = ranges > 1 && blocks < 2 * shape.num_multiprocessors && bytes <= kMaxAttentionWorkspace;
  config.num_ranges = spread ? static_cast<int32_t>(ranges) : 1;
  config.workspace_bytes = spread ? bytes : 0;
  return config;
}

}  // namespace eagle31rt
