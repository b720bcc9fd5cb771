// The law of one row (sample.h) on the device: a function id -> integer weight, evaluated from the logits wherever it
// is wanted, and the block-wide sum and draw over any such function. All threads of a block call these together.
#pragma once

#include "base/numerics.h"
#include "ops/sample/row_logits.cuh"

namespace eagle31rt::cuda {

struct RowLaw {
  float max_logit;
  float temperature;
  uint64_t min_weight;  // kept: weight >= min_weight
  uint64_t cut;         // kept: order_of(logit, id) >= cut; 0 keeps all
  uint64_t total;       // 0: no id has a logit above -inf
  int32_t point_id;     // >= 0: all mass on this id
};

// How far below the maximum, in temperatures; at most 0. NaN stays NaN.
E31_DEVICE float scaled_logit(const RowLaw& law, float logit) { return (logit - law.max_logit) / law.temperature; }

E31_DEVICE uint64_t weight_of(const RowLaw& law, const RowLogits& logits, int32_t id) {
  if (law.point_id >= 0 || law.total == 0) return id == law.point_id ? law.total : 0;
  const float logit = logits[id];
  if (law.cut != 0 && order_of(logit, id) < law.cut) return 0;
  const uint64_t weight = law::weight_of(numerics::exp_float(scaled_logit(law, logit)));
  return weight >= law.min_weight ? weight : 0;
}

// Ids are summed in one segment for each warp, so that a draw looks at one segment only.
struct Segments {
  int32_t vocab_size;
  int32_t length;  // of each but the last; a multiple of 32

  E31_DEVICE explicit Segments(int32_t ids) : vocab_size(ids) {
    length = ((ids + num_warps() - 1) / num_warps() + kWarpSize - 1) / kWarpSize * kWarpSize;
  }
  E31_DEVICE int32_t begin(int32_t segment) const { return min(segment * length, vocab_size); }
};

// Sums weight(id); masses [kMaxWarps] in shared memory, readable by all threads at return.
template <typename Weight>
E31_DEVICE uint64_t sum_segments(const Weight& weight, int32_t vocab_size, uint64_t* masses) {
  const Segments segments(vocab_size);
  const int32_t end = segments.begin(warp_index() + 1);
  uint64_t mass = 0;
  for (int32_t id = segments.begin(warp_index()) + lane_index(); id < end; id += kWarpSize) mass += weight(id);
  return block_sum(mass, masses);
}

// The id whose cumulative weight first exceeds bits * total / 2^64; total > 0 and masses as sum_segments left them (or
// copied from there). The same in all threads.
template <typename Weight>
E31_DEVICE int32_t draw_id(const Weight& weight, int32_t vocab_size, const uint64_t* masses, uint64_t total,
                           uint64_t bits, uint64_t* warp_values) {
  __shared__ int32_t drawn;
  uint64_t rest = law::draw_threshold(bits, total);
  const uint64_t mass = lane_index() < num_warps() ? masses[lane_index()] : 0;
  const uint64_t sum = warp_inclusive_sum(mass);
  const int32_t segment = __ffs(static_cast<int>(__ballot_sync(kFullWarp, sum > rest))) - 1;
  rest -= __shfl_sync(kFullWarp, sum - mass, segment);

  const Segments segments(vocab_size);
  const int32_t begin = segments.begin(segment), end = segments.begin(segment + 1);
  const int32_t share = (end - begin + static_cast<int32_t>(blockDim.x) - 1) / static_cast<int32_t>(blockDim.x);
  const int32_t first = min(begin + static_cast<int32_t>(threadIdx.x) * share, end), last = min(first + share, end);
  uint64_t own = 0;
  for (int32_t id = first; id < last; ++id) own += weight(id);
  const uint64_t before = block_exclusive_sum(own, warp_values).before;
  if (before <= rest && rest < before + own) {
    int32_t id = first;
    for (uint64_t sum_to_id = before + weight(id); sum_to_id <= rest; sum_to_id += weight(++id)) {
    }
    drawn = id;
  }
  __syncthreads();
  return drawn;
}

}  // namespace eagle31rt::cuda
