// The kernel of paged attention on matrix instructions: see cuda.cu.
#pragma once

#include "device/cuda/stored.cuh"
#include "ops/paged_attention/cuda_range.cuh"

namespace eagle31rt::cuda {

template <typename ElementType, int kDimValue, int kQueryWarps, int kColumnWarps>
struct TileTraits {
  using Element = ElementType;
  static constexpr int kDim = kDimValue;            // head_dim rounded up
  static constexpr int kStride = kDim + 8;          // of rows in shared memory: eight rows hit different banks
  static constexpr int kRowWarps = kQueryWarps;     // 16 queries each
  static constexpr int kSplitWarps = kColumnWarps;  // share the positions of a split, then the dims
  static constexpr int kQueries = 16 * kRowWarps;
  static constexpr int kThreads = kWarpSize * kRowWarps * kSplitWarps;
  static constexpr int kMinBlocks = 256 / kThreads;  // a multiprocessor: 255 registers a thread, else a few are spilled
  // Half splits (keys or values) on their way or in use. Many queries a tile: the matrix unit is the limit and two
  // blocks should fit a multiprocessor. Few: memory is.
  static constexpr int kStages = kRowWarps == 4 || kDim > 128 ? 2 : 4;
  static constexpr int kScoreStride = kAttentionSplit + 8;  // floats; conflict-free for the fragments' pairs
  static constexpr int kScoreTilesPerWarp = kScoreTiles / kSplitWarps;
  static constexpr int kDimsPerWarp = kDim / kSplitWarps;
  static_assert(kDimsPerWarp % 16 == 0 && kThreads >= kAttentionSplit);
};

// What a block has to do. In shared memory because every warp needs it now and then, and registers are short.
template <int kQueries>
struct BlockWork {
  Tile tile;
  Units units;
  int32_t tile_end;       // the largest end
  int32_t end[kQueries];  // one past the last logical position that a row of the tile sees
  int32_t request;

  // Whether there is anything. Synchronises.
  E31_DEVICE bool find(const AttentionProblem& problem, const AttentionTiling& tiling) {
    Tile own = find_tile(problem, tiling, &request);
    if (own.request < 0) return false;
    const int last = store_row_ends(problem, own, end);
    if (threadIdx.x == 0) {
      tile = own;
      units = units_of(problem, tiling.partials, own, last);
      tile_end = last;
    }
    __syncthreads();
    return units.count() > 0;
  }

  // Fills the offsets of a unit's entries, if there is such a unit.
  E31_DEVICE void find_entries(const AttentionProblem& problem, int unit, int64_t* offset) const {
    if (threadIdx.x >= kAttentionSplit || unit >= units.count()) return;
    offset[threadIdx.x] = entry_offset(problem, tile, units, unit, tile_end, end, static_cast<int>(threadIdx.x));
  }
};

template <typename Traits>
struct TileMemory {
  alignas(16) typename Traits::Element query[Traits::kQueries * Traits::kStride];
  alignas(16) typename Traits::Element ring[Traits::kStages][kAttentionSplit * Traits::kStride];
  alignas(16) float score[Traits::kSplitWarps > 1 ? Traits::kQueries * Traits::kScoreStride : 4];
  int64_t offset[2][kAttentionSplit];  // of the entries of even and odd units
  BlockWork<Traits::kQueries> work;
};

// Queries times scale, rounded to the cache's type; zeros where there is no query and past key_dim.
template <int kThreads, int kQueries, int kDim, int kStride, typename Element>
E31_DEVICE void load_queries(const AttentionProblem& problem, Tile tile, Element* shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kQueries * kDim; i += kThreads) {
    const int query = i / kDim, dim = i % kDim;
    float value = 0.0f;
    if (query < tile.num_queries() && dim < problem.key_dim) {
      const int64_t row = tile.row_begin + query / tile.num_heads, head = tile.head_begin + query % tile.num_heads;
      value = problem.query[row * problem.query_stride + head * problem.key_dim + dim] * problem.scale;
    }
    shared[query * kStride + dim] = narrow<Element>(value);
  }
}

// Zeros in the columns of a ring that no copy fills.
template <int kThreads, int kDim, int kStride, typename Element>
E31_DEVICE void clear_padding(Element* ring, int num_rows, int used_dims) {
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * kDim && used_dims < kDim; i += kThreads) {
    if (i % kDim >= used_dims) ring[i / kDim * kStride + i % kDim] = narrow<Element>(0.0f);
  }
}

// Copies rows of 16-byte chunks from the cache, one for each entry offset; zeros for offset -1.
template <int kThreads, int kRows, int kDim, int kStride, typename Element>
E31_DEVICE void copy_entries(const Element* source, const int64_t* offset, int used_dims, Element* shared) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, dim = i % kChunks * 8;
    if (dim >= used_dims) continue;
    const int64_t entry = offset[row];
    cp_async_16(shared + row * kStride + dim, source + (entry < 0 ? 0 : entry) + dim, entry >= 0);
  }
}

// The block's keys and values: tile 2 u has the keys of unit u, tile 2 u + 1 its values.
template <typename Traits>
struct TileRing {
  using Element = typename Traits::Element;
  static constexpr int kAhead = Traits::kStages / 2;  // units whose entries are known in advance

  const AttentionProblem& problem;
  TileMemory<Traits>& shared;

  // Finds the entries of a unit. A barrier must follow before they are loaded.
  E31_DEVICE void prepare(int unit) { shared.work.find_entries(problem, unit, shared.offset[unit % 2]); }

  E31_DEVICE void load(int number) {
    if (number < 2 * shared.work.units.count()) {
      const void* source = number % 2 == 0 ? problem.key : problem.value;
      copy_entries<Traits::kThreads, kAttentionSplit, Traits::kDim, Traits::kStride>(
          static_cast<const Element*>(source), shared.offset[number / 2 % 2], problem.key_dim, slot(number));
    }
    cp_async_commit();
  }

  E31_DEVICE void start() {
#pragma unroll
    for (int unit = 0; unit < kAhead; ++unit) prepare(unit);
    __syncthreads();
#pragma unroll
    for (int number = 0; number + 1 < Traits::kStages; ++number) load(number);
  }

  // Until the tile is here and everybody is done with the one whose slot the next load takes.
  E31_DEVICE void wait() {
    cp_async_wait<Traits::kStages - 2>();
    __syncthreads();
  }

  E31_DEVICE Element* slot(int number) { return shared.ring[number % Traits::kStages]; }
};

// The values of kSteps * 16 positions of a split, for the queries of a warp. Where rows end inside the split, or
// windows begin, a value that is not finite would reach rows that do not see it as 0 * NaN; then (and only then) each
// row takes a product of its own.
template <int kDims, int kFirstStep, int kSteps, typename Work, typename Element, typename Scores, int kValueTiles>
E31_DEVICE void weigh_values(const AttentionProblem& problem, const Work& work, int unit,
                             const Weights<Element, Scores>& weights, const Element* values, int stride,
                             const QueryPlaces& places, QueryState<kValueTiles>& state) {
  const Tile& tile = work.tile;
  const int start = work.units.split(unit) * kAttentionSplit;
  int row_begin = work.units.row(unit), row_end = row_begin + 1;
  if (row_begin < 0) {
    // First place of this step's entries among those of `values`.
    const bool windows = visible_begin(problem, tile.kv_begin, work.tile_end) > max(start, tile.kv_begin);
    const int own = windows ? 0 : max(tile.kv_length - start - 16 * kFirstStep, 0);
    if (tile.num_rows == 1 || own >= 16 * kSteps || !any_non_finite<kDims>(values, stride, own, 16 * kSteps)) {
      accumulate<kFirstStep, kSteps>(weights, values, stride, state);
      return;
    }
    row_begin = places.first / tile.num_heads;
    row_end = min((places.first + 15) / tile.num_heads + 1, tile.num_rows);
  }
  for (int row = row_begin; row < row_end; ++row) {
    const bool selected[2] = {places.row[0] == row, places.row[1] == row};
    const int end = work.end[row] - start, begin = visible_begin(problem, tile.kv_begin, work.end[row]) - start;
    accumulate_selected<kFirstStep, kSteps>(weights, values, stride, begin, end, selected, state);
  }
}

// One warp's queries and the part of the dims that it holds.
template <int kDimsPerWarp>
struct WarpQueries {
  int first_dim;
  QueryPlaces places;
  QueryState<kDimsPerWarp / 8> state;

  E31_DEVICE WarpQueries(const Tile& tile, int query, int dim) : first_dim(dim), places(tile, query) {}

  // Whether any of the warp's queries takes part in the unit.
  E31_DEVICE bool takes_part(const Tile& tile, int row) const {
    if (row < 0) return places.first < tile.num_queries();
    return row * tile.num_heads < places.first + 16 && (row + 1) * tile.num_heads > places.first;
  }

  // Takes the unit's scores into the maxima and returns its weights.
  template <typename Element, typename Work, typename Scores>
  E31_DEVICE Weights<Element, Scores> weigh_unit(const AttentionProblem& problem, const Work& work, int unit,
                                                 const Scores& scores) {
    const int start = work.units.split(unit) * kAttentionSplit, row = work.units.row(unit);
    Weights<Element, Scores> weights{
        scores,
        {{places.begin(problem, work.tile, work.end, 0) - start, places.begin(problem, work.tile, work.end, 1) - start},
         {places.end(work.end, 0) - start, places.end(work.end, 1) - start}},
        {}};
    const bool selected[2] = {row < 0 || places.row[0] == row, row < 0 || places.row[1] == row};
    grow_maxima(scores, weights.visible, selected, state, weights.shift);
    return weights;
  }

  // After the last unit of a range: merges it into the total where a block has several ranges, and stores after the
  // last.
  template <typename Work>
  E31_DEVICE void finish_range(const AttentionProblem& problem, const AttentionTiling& tiling, const Work& work,
                               bool first, bool last, RangeTotal& total) {
    if (!first || !last) total.merge(problem, work.tile, places, first_dim, first, state);
    if (last) store_range(problem, tiling.partials, work.tile, work.end, places, first_dim, state);
  }
};

template <typename Traits>
struct TileBlock {
  using Element = typename Traits::Element;

  const AttentionProblem& problem;
  TileMemory<Traits>& shared;
  TileRing<Traits>& ring;
  WarpQueries<Traits::kDimsPerWarp>& queries;
  int first_place;  // of the positions whose scores this warp computes

  E31_DEVICE void attend(int unit) {
    const bool takes_part = queries.takes_part(shared.work.tile, shared.work.units.row(unit));
    float* const shared_score = shared.score + queries.places.first * Traits::kScoreStride;
    float score[Traits::kScoreTilesPerWarp][4] = {};
    ring.wait();
    ring.load(2 * unit + Traits::kStages - 1);
    ring.prepare(unit + ring.kAhead);
    if (takes_part) {
      score_tiles<Traits::kDim>(shared.query + queries.places.first * Traits::kStride,
                                ring.slot(2 * unit) + first_place * Traits::kStride, Traits::kStride, score);
      if constexpr (Traits::kSplitWarps > 1) share_scores<Traits::kScoreStride>(score, shared_score + first_place);
    }
    ring.wait();
    ring.load(2 * unit + Traits::kStages);
    if (!takes_part) return;
    if constexpr (Traits::kSplitWarps > 1) {
      weigh(unit, SharedScores<Traits::kScoreStride>(shared_score));
    } else {
      weigh(unit, OwnScores{score});
    }
  }

  template <typename Scores>
  E31_DEVICE void weigh(int unit, const Scores& scores) {
    const auto weights = queries.template weigh_unit<Element>(problem, shared.work, unit, scores);
    weigh_values<Traits::kDimsPerWarp, 0, kPositionSteps>(problem, shared.work, unit, weights,
                                                          ring.slot(2 * unit + 1) + queries.first_dim, Traits::kStride,
                                                          queries.places, queries.state);
  }
};

// Goes through a block's units, range by range.
template <typename Block, typename Work, typename Queries>
E31_DEVICE void attend_units(const AttentionProblem& problem, const AttentionTiling& tiling, const Work& work,
                             Block& block, Queries& queries) {
  RangeTotal total;
  for (int unit = 0, range_begin = 0; unit < work.units.count(); range_begin = unit) {
    queries.state.clear();
    do {
      block.attend(unit);
    } while (!work.units.ends_range(unit++));
    queries.finish_range(problem, tiling, work, range_begin == 0, unit == work.units.count(), total);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    attention_kernel(const AttentionProblem problem, const AttentionTiling tiling) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  TileMemory<Traits>& shared = *reinterpret_cast<TileMemory<Traits>*>(shared_bytes);
  if (!shared.work.find(problem, tiling)) return;
  TileRing<Traits> ring{problem, shared};
  ring.start();
  load_queries<Traits::kThreads, Traits::kQueries, Traits::kDim, Traits::kStride>(problem, shared.work.tile,
                                                                                  shared.query);
  clear_padding<Traits::kThreads, Traits::kDim, Traits::kStride>(shared.ring[0], Traits::kStages * kAttentionSplit,
                                                                 problem.key_dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int column = warp % Traits::kSplitWarps, first_query = warp / Traits::kSplitWarps * 16;
  WarpQueries<Traits::kDimsPerWarp> queries(shared.work.tile, first_query, column * Traits::kDimsPerWarp);
  TileBlock<Traits> block{problem, shared, ring, queries, column * Traits::kScoreTilesPerWarp * 8};
  attend_units(problem, tiling, shared.work, block, queries);
  cp_async_wait<0>();
}

}  // namespace eagle31rt::cuda
