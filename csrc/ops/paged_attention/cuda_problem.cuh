// What the attention kernels (paged and latent) work on, and who works on what: tiles of queries, and the units of keys
// and values that a tile goes through.
#pragma once

#include <cstdint>

#include "device/cuda/ptx.cuh"
#include "ops/paged_attention/config.h"

namespace eagle31rt::cuda {

struct AttentionProblem {
  const float* query;  // [num_rows, query_stride]: num_heads heads of key_dim
  float* output;       // [num_rows, num_heads, value_dim]
  const void* key;     // entry e of KV head h: page * page_stride + h * head_stride + offset * entry_stride
  const void* value;   // the same place; for latent rows the same memory
  int64_t query_stride;
  int64_t page_stride;   // elements
  int64_t head_stride;   // elements
  int32_t entry_stride;  // elements
  int32_t page_size;
  int32_t key_dim, value_dim;
  int32_t num_heads, group;
  const int32_t* page_table;  // [num_requests, page_table_stride]
  const int32_t* row_begin;
  const int32_t* kv_begin;
  const int32_t* kv_length;  // negative: an inert request of a padded batch
  const uint64_t* ancestor_mask;
  int32_t page_table_stride;
  int32_t mask_words;
  int32_t num_requests;
  int32_t num_rows;
  float scale;  // of scores in powers of two: the operator's scale * log2(e)
  const float* sinks;
  int32_t sliding_window;
};

// Where ranges meet: (m, l) [num_ranges, num_rows * num_heads] and o [num_ranges, num_rows * num_heads, value_dim].
struct RangePartials {
  int32_t num_ranges;  // 1: none, a block takes all ranges
  float2* state;
  float* output;
};

struct AttentionTiling {
  int32_t rows_per_tile, heads_per_tile, head_blocks;
  RangePartials partials;
};

// Queries row * num_heads + head of up to rows_per_tile rows of a request and of the heads of one KV head.
struct Tile {
  int32_t request;  // -1: a tile that no request owns
  int32_t row_begin, num_rows;
  int32_t kv_head, head_begin, num_heads;
  int32_t kv_begin;   // first position that any of the rows sees
  int32_t kv_length;  // of the request

  E31_DEVICE int num_queries() const { return num_rows * num_heads; }
};

// The tile of this block: x = number of the tile, y = block of heads. `request` is shared memory. Synchronises.
E31_DEVICE Tile find_tile(const AttentionProblem& problem, const AttentionTiling& tiling, int32_t* request) {
  const int rows_per_tile = tiling.rows_per_tile, number = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) *request = -1;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < problem.num_requests; i += static_cast<int>(blockDim.x)) {
    const int begin = problem.row_begin[i], rows = problem.row_begin[i + 1] - begin;
    const int first = begin / rows_per_tile + i;
    if (number >= first && number < first + (rows + rows_per_tile - 1) / rows_per_tile && problem.kv_length[i] >= 0) {
      *request = i;
    }
  }
  __syncthreads();
  Tile tile{};
  tile.request = *request;
  if (tile.request < 0) return tile;
  const int begin = problem.row_begin[tile.request], end = problem.row_begin[tile.request + 1];
  tile.row_begin = begin + (number - begin / rows_per_tile - tile.request) * rows_per_tile;
  tile.num_rows = min(end - tile.row_begin, rows_per_tile);
  tile.kv_head = static_cast<int>(blockIdx.y) / tiling.head_blocks;
  const int first_head = static_cast<int>(blockIdx.y) % tiling.head_blocks * tiling.heads_per_tile;
  tile.head_begin = tile.kv_head * problem.group + first_head;
  tile.num_heads = min(problem.group - first_head, tiling.heads_per_tile);
  tile.kv_begin = problem.kv_begin[tile.request];
  tile.kv_length = problem.kv_length[tile.request];
  return tile;
}

// One past the last logical position that the row sees.
E31_DEVICE int visible_end(const AttentionProblem& problem, int request, int row) {
  int own = row - problem.row_begin[request] + 1;
  if (problem.ancestor_mask != nullptr) {
    own = 0;
    for (int w = 0; w < problem.mask_words; ++w) {
      own += __popcll(problem.ancestor_mask[static_cast<int64_t>(row) * problem.mask_words + w]);
    }
  }
  return problem.kv_length[request] + own;
}

// First logical position that a row sees whose last one is end - 1; `begin` bounds it from below.
E31_DEVICE int visible_begin(const AttentionProblem& problem, int begin, int end) {
  return problem.sliding_window > 0 ? max(begin, end - problem.sliding_window) : begin;
}

// Fills ends[row of the tile] (shared memory), returns the largest, and moves the tile's begin to the first window.
// Synchronises.
E31_DEVICE int store_row_ends(const AttentionProblem& problem, Tile& tile, int32_t* ends) {
  for (int r = static_cast<int>(threadIdx.x); r < tile.num_rows; r += static_cast<int>(blockDim.x)) {
    ends[r] = visible_end(problem, tile.request, tile.row_begin + r);
  }
  __syncthreads();
  int first = ends[0], last = 0;
  for (int r = 0; r < tile.num_rows; ++r) {
    first = min(first, ends[r]);
    last = max(last, ends[r]);
  }
  tile.kv_begin = visible_begin(problem, tile.kv_begin, first);
  return last;
}

// KV index of the n-th (from 0) set bit of a row's ancestor mask, relative to the first row.
E31_DEVICE int nth_ancestor(const uint64_t* mask, int n) {
  int word = 0;
  for (int count = __popcll(mask[0]); count <= n; count = __popcll(mask[word])) {
    n -= count;
    ++word;
  }
  uint64_t bits = mask[word];
  for (; n > 0; --n) bits &= bits - 1;
  return 64 * word + __ffsll(static_cast<long long>(bits)) - 1;
}

// What a tile goes through, in this order: a unit is one split, seen by all rows of the tile; or, from the split that
// holds the request's first masked row on, one split as one row sees it, its ancestors gathered in logical order.
struct Units {
  int32_t first_split, num_splits;
  int32_t num_shared;  // splits that all rows share; they come first
  int32_t num_rows;

  E31_DEVICE int count() const { return num_shared + (num_splits - num_shared) * num_rows; }
  E31_DEVICE int split(int unit) const {
    return first_split + (unit < num_shared ? unit : num_shared + (unit - num_shared) / num_rows);
  }
  E31_DEVICE int row(int unit) const { return unit < num_shared ? -1 : (unit - num_shared) % num_rows; }
  // Whether the unit is the last of its range.
  E31_DEVICE bool ends_range(int unit) const {
    return unit + 1 == count() || split(unit) / kSplitsPerRange != split(unit + 1) / kSplitsPerRange;
  }
};

E31_DEVICE Units units_of(const AttentionProblem& problem, const RangePartials& partials, const Tile& tile,
                          int tile_end) {
  int begin = tile.kv_begin / kAttentionSplit;
  int end = (tile_end + kAttentionSplit - 1) / kAttentionSplit;
  if (partials.num_ranges > 1) {
    begin = max(begin, static_cast<int>(blockIdx.z) * kSplitsPerRange);
    end = min(end, (static_cast<int>(blockIdx.z) + 1) * kSplitsPerRange);
  }
  Units units{begin, max(end - begin, 0), max(end - begin, 0), tile.num_rows};
  if (problem.ancestor_mask != nullptr) {
    const int first_masked = tile.kv_length / kAttentionSplit;
    units.num_shared = min(max(first_masked - begin, 0), units.num_splits);
  }
  return units;
}

// Where position `place` of a unit's split lies in the cache (elements), or -1 if nobody may read it.
E31_DEVICE int64_t entry_offset(const AttentionProblem& problem, const Tile& tile, const Units& units, int unit,
                                int tile_end, const int32_t* ends, int place) {
  const int position = units.split(unit) * kAttentionSplit + place, row = units.row(unit);
  const int begin = row < 0 ? tile.kv_begin : visible_begin(problem, tile.kv_begin, ends[row]);
  if (position < begin || position >= (row < 0 ? tile_end : ends[row])) return -1;
  const int length = tile.kv_length;
  int entry = position;
  if (row >= 0 && position >= length) {
    const int64_t mask_row = static_cast<int64_t>(tile.row_begin + row) * problem.mask_words;
    entry = length + nth_ancestor(problem.ancestor_mask + mask_row, position - length);
  }
  const int64_t table_row = static_cast<int64_t>(tile.request) * problem.page_table_stride;
  const int64_t page = problem.page_table[table_row + entry / problem.page_size];
  return page * problem.page_stride + tile.kv_head * problem.head_stride +
         static_cast<int64_t>(entry % problem.page_size) * problem.entry_stride;
}

}  // namespace eagle31rt::cuda
