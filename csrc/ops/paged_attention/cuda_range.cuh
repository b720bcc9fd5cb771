// What happens to a range's (m, l, o) when its last split is done: merged into the total of the block's own queries,
// kept for merge_ranges_kernel, or (only range) divided and stored. The merge is the same arithmetic wherever it runs;
// a query with one range needs none, since merging into (-inf, 0, 0) changes nothing.
#pragma once

#include "ops/paged_attention/cuda_problem.cuh"
#include "ops/paged_attention/cuda_warp.cuh"

namespace eagle31rt::cuda {

// The two queries whose fragment rows a thread holds.
struct QueryPlaces {
  int first;   // number in the tile of the query in fragment row 0 of the warp
  int row[2];  // of the tile; -1: no query

  E31_DEVICE QueryPlaces(const Tile& tile, int first_query) : first(first_query) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = query(h) < tile.num_queries() ? query(h) / tile.num_heads : -1;
    }
  }

  E31_DEVICE int query(int h) const { return first + static_cast<int>(threadIdx.x) % kWarpSize / 4 + 8 * h; }
  // One past the last logical position that it sees. `ends` are those of the tile's rows.
  E31_DEVICE int end(const int32_t* ends, int h) const { return row[h] < 0 ? 0 : ends[row[h]]; }
  // The first one; without windows that of the tile, whether there is a query or not: one register for both.
  E31_DEVICE int begin(const AttentionProblem& problem, const Tile& tile, const int32_t* ends, int h) const {
    return visible_begin(problem, tile.kv_begin, end(ends, h));
  }
  // row * num_heads + head of a query that is there.
  E31_DEVICE int64_t index(const AttentionProblem& problem, const Tile& tile, int h) const {
    return static_cast<int64_t>(tile.row_begin + row[h]) * problem.num_heads + tile.head_begin + query(h) -
           row[h] * tile.num_heads;
  }
};

E31_DEVICE int range_of(int position) { return position / kAttentionRange; }

// What the output sums of a query of `head` are multiplied by in the end: one over the sum, in which a sink is one more
// position.
E31_DEVICE float final_factor(const AttentionProblem& problem, int head, float max, float sum) {
  if (problem.sinks == nullptr) return __fdividef(1.0f, sum);  // the exact quotient is a call: registers spill
  const MergeFactors factors = merge_factors(max, problem.sinks[head] * kLog2E);
  return factors.old_scale * __fdividef(1.0f, merged(factors, sum, 1.0f));
}

// Total of the ranges so far of a thread's queries, where a block has several; the outputs wait in the output rows
// themselves, which costs 8 value_dim bytes a query and range: 2 % of the keys' and values' for four queries.
struct RangeTotal {
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};

  // Merges the state of a range; the result is in the state, too.
  template <int kValueTiles>
  E31_DEVICE void merge(const AttentionProblem& problem, const Tile& tile, const QueryPlaces& places, int first_dim,
                        bool first, QueryState<kValueTiles>& state) {
    const int dim = first_dim + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (places.row[h] < 0) continue;
      const MergeFactors factors = merge_factors(max[h], state.max[h]);
      max[h] = state.max[h] = factors.max;
      sum[h] = state.sum[2 * h] = merged(factors, sum[h], state.sum[2 * h]);
      float* output = problem.output + places.index(problem, tile, h) * problem.value_dim + dim;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        if (dim + 8 * n >= problem.value_dim) continue;
        float2& total = *reinterpret_cast<float2*>(output + 8 * n);
        const float2 old_total = first ? float2{0.0f, 0.0f} : total;
        state.output[n][2 * h] = merged(factors, old_total.x, state.output[n][2 * h]);
        state.output[n][2 * h + 1] = merged(factors, old_total.y, state.output[n][2 * h + 1]);
        total = {state.output[n][2 * h], state.output[n][2 * h + 1]};
      }
    }
  }
};

// Stores the outputs of a block's last range: divided, or as one of the partial results of a query that has several
// ranges in several blocks. first_dim: the first of the dims that this thread's warp holds.
template <int kValueTiles>
E31_DEVICE void store_range(const AttentionProblem& problem, const RangePartials& partials, const Tile& tile,
                            const int32_t* ends, const QueryPlaces& places, int first_dim,
                            const QueryState<kValueTiles>& state) {
  const int dim = first_dim + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (places.row[h] < 0) continue;
    const int64_t index = places.index(problem, tile, h);
    float* destination = problem.output + index * problem.value_dim + dim;
    const int first = range_of(places.begin(problem, tile, ends, h)), last = range_of(places.end(ends, h) - 1);
    const int range = static_cast<int>(blockIdx.z);
    if (partials.num_ranges > 1 && (range < first || range > last)) continue;  // seen by another row of the tile
    float factor;
    if (partials.num_ranges > 1 && first != last) {
      const int64_t place = static_cast<int64_t>(blockIdx.z) * problem.num_rows * problem.num_heads + index;
      if (dim == 0) partials.state[place] = {state.max[h], state.sum[2 * h]};
      destination = partials.output + place * problem.value_dim + dim;
      factor = 1.0f;
    } else {
      factor = final_factor(problem, static_cast<int>(index % problem.num_heads), state.max[h], state.sum[2 * h]);
    }
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      const float* value = state.output[n] + 2 * h;
      if (dim + 8 * n < problem.value_dim) {
        *reinterpret_cast<float2*>(destination + 8 * n) = {normalised(value[0], factor), normalised(value[1], factor)};
      }
    }
  }
}

}  // namespace eagle31rt::cuda
