// Experts of each row, then the rows of each expert.
//
// Choosing: one warp a row, one warp a block. Ranks become 64-bit keys in shared memory (rank, then the complement of
// the id), so that the largest key is the next expert and there are no ties; top_k rounds of a warp maximum. 256
// experts, 8 of them: 8 x (8 reads + 10 shuffles) a lane, about 1 us, the same for 1 row and for 2048; bytes: 4 for
// each logit, nothing.
//
// Sorting: one block counts, adds up and deals out. 2048 rows of 8: 16 passes of 1024 threads over 64 KB, about 10 us
// beside the 400 us of such a step's experts; a decode step's fits one pass, 3 us. Places within an expert come by
// shared-memory atomics, in no particular order.
#include "base/check.h"
#include "base/numerics.h"
#include "device/cuda/block.cuh"
#include "device/cuda/launch.h"
#include "ops/moe_route/moe_route.h"

namespace eagle31rt::cuda {

namespace {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// Ascending with the rank and, among equal ranks, descending with the index; never 0, which stands for "out".
E31_DEVICE uint64_t key_of(float rank, int32_t index) {
  const float number = isnan(rank) ? kMinusInfinity : rank + 0.0f;  // -0 counts as 0
  const uint32_t bits = __float_as_uint(number);
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ascending) << 32) | ~static_cast<uint32_t>(index);
}
E31_DEVICE int32_t index_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
E31_DEVICE float rank_of(uint64_t key) {
  const auto ascending = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ascending & 0x80000000u) != 0 ? ascending & 0x7fffffffu : ~ascending);
}

E31_DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

struct RouteShared {
  uint64_t keys[kMaxExperts];
  uint64_t group_keys[kMaxExpertGroups];
  float scores[kMaxExperts];
  int32_t ids[kMaxExpertsPerToken];
  float shares[kMaxExpertsPerToken];
  uint32_t chosen[kMaxExperts / kWarpSize];  // bitmap
};

// The largest of keys[0 .. count - 1], which becomes 0; the same in all lanes.
E31_DEVICE uint64_t take_largest(uint64_t* keys, int32_t count) {
  uint64_t best = 0;
  int32_t place = 0;
  for (int32_t i = lane_index(); i < count; i += kWarpSize) {
    if (keys[i] > best) {
      best = keys[i];
      place = i;
    }
  }
  const uint64_t largest = warp_reduce(best, larger);
  if (best == largest && largest != 0) keys[place] = 0;  // keys differ, so this is one lane
  __syncwarp();
  return largest;
}

E31_DEVICE void score_row(const MoeRouteParams& p, const float* logits, RouteShared& shared) {
  for (int32_t e = lane_index(); e < p.num_experts; e += kWarpSize) {
    float score = logits[e];
    if (p.scoring == MoeScoring::kSigmoid) score = 1.0f / (1.0f + numerics::exp_float(0.0f - score));
    shared.scores[e] = score;
    shared.keys[e] = key_of(p.correction == nullptr ? score : score + p.correction[e], e);
  }
  __syncwarp();
}

// Keys of experts outside of the chosen groups become 0. A lane takes whole groups.
E31_DEVICE void keep_best_groups(const MoeRouteParams& p, RouteShared& shared) {
  const int32_t size = p.num_experts / p.num_groups;
  for (int32_t g = lane_index(); g < p.num_groups; g += kWarpSize) {
    uint64_t first = 0, second = 0;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) {
      const uint64_t key = shared.keys[e];
      second = larger(second, key < first ? key : first);
      first = larger(first, key);
    }
    shared.group_keys[g] = key_of(size < 2 ? rank_of(first) : rank_of(first) + rank_of(second), g);
  }
  __syncwarp();
  uint64_t kept = 0;  // kMaxExpertGroups bits
  for (int32_t i = 0; i < p.num_groups_chosen; ++i) {
    kept |= uint64_t{1} << index_of(take_largest(shared.group_keys, p.num_groups));
  }
  for (int32_t e = lane_index(); e < p.num_experts; e += kWarpSize) {
    if ((kept >> (e / size) & 1) == 0) shared.keys[e] = 0;
  }
  __syncwarp();
}

// Fills shared.ids, ascending. Returns the rank of the best.
E31_DEVICE float choose(const MoeRouteParams& p, RouteShared& shared) {
  const int32_t lane = lane_index();
  shared.chosen[lane] = 0;
  __syncwarp();
  float best_rank = 0.0f;
  for (int32_t j = 0; j < p.top_k; ++j) {
    const uint64_t key = take_largest(shared.keys, p.num_experts);
    const int32_t expert = index_of(key);
    if (j == 0) best_rank = rank_of(key);
    if (lane == 0) shared.chosen[expert / kWarpSize] |= 1u << (expert % kWarpSize);
  }
  __syncwarp();
  const uint32_t bits = shared.chosen[lane];
  const int32_t count = __popc(bits);
  int32_t place = warp_inclusive_sum(count) - count;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    shared.ids[place++] = lane * kWarpSize + __ffs(static_cast<int>(rest)) - 1;
  }
  __syncwarp();
  return best_rank;
}

E31_DEVICE void weigh(const MoeRouteParams& p, float largest, RouteShared& shared, float* weights) {
  const bool sigmoid = p.scoring == MoeScoring::kSigmoid;
  for (int32_t j = lane_index(); j < p.top_k; j += kWarpSize) {
    const float score = shared.scores[shared.ids[j]];
    shared.shares[j] = sigmoid ? score : numerics::exp_float(score - largest);
  }
  __syncwarp();
  float sum = 0.0f;
  if (p.normalise) {
    for (int32_t j = 0; j < p.top_k; ++j) sum += shared.shares[j];
    if (sigmoid) sum += 1e-20f;
  } else if (sigmoid) {
    sum = 1.0f;
  } else {
    for (int32_t e = lane_index(); e < p.num_experts; e += kWarpSize) {
      sum += numerics::exp_float(shared.scores[e] - largest);
    }
    sum = warp_reduce(sum, [](float a, float b) { return a + b; });
  }
  for (int32_t j = lane_index(); j < p.top_k; j += kWarpSize) weights[j] = shared.shares[j] / sum * p.scale;
}

// Grid: a row a block.
__global__ void __launch_bounds__(kWarpSize) moe_route_kernel(const __grid_constant__ MoeRouteParams p) {
  __shared__ RouteShared shared;
  const int64_t row = blockIdx.x;
  score_row(p, p.logits + row * p.num_experts, shared);
  if (p.num_groups > 1) keep_best_groups(p, shared);
  const float largest = choose(p, shared);
  for (int32_t j = lane_index(); j < p.top_k; j += kWarpSize) p.expert_ids[row * p.top_k + j] = shared.ids[j];
  weigh(p, largest, shared, p.weights + row * p.top_k);
}

constexpr int kSortThreads = kMaxExperts;  // a thread an expert when counts are added up

// One block.
__global__ void __launch_bounds__(kSortThreads) moe_sort_kernel(const __grid_constant__ MoeRouteParams p) {
  __shared__ int32_t next[kMaxExperts];
  __shared__ int32_t warp_values[kMaxWarps];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto num_assignments = static_cast<int32_t>(p.num_rows * p.top_k);
  next[thread] = 0;
  __syncthreads();
  for (int32_t i = thread; i < num_assignments; i += kSortThreads) atomicAdd(&next[p.expert_ids[i]], 1);
  __syncthreads();
  const BlockScan<int32_t> scan = block_exclusive_sum(next[thread], warp_values);
  next[thread] = scan.before;
  if (thread < p.num_experts) p.expert_begin[thread] = scan.before;
  if (thread == 0) p.expert_begin[p.num_experts] = num_assignments;
  __syncthreads();
  for (int32_t i = thread; i < num_assignments; i += kSortThreads) {
    const int32_t place = atomicAdd(&next[p.expert_ids[i]], 1);
    p.places[i] = place;
    p.sorted_rows[place] = i / p.top_k;
  }
}

}  // namespace

void moe_route(const MoeRouteParams& params, ExecutionContext& context) {
  static_assert(kMaxExperts / kWarpSize == kWarpSize, "a lane a word of the bitmap");
  E31_INVARIANT(params.num_experts <= kMaxExperts && params.top_k <= kMaxExpertsPerToken &&
                params.num_groups <= kMaxExpertGroups);
  launch("moe_route", moe_route_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kWarpSize)}, context, params);
  launch("moe_sort", moe_sort_kernel, {.grid = dim3(1), .block = dim3(kSortThreads)}, context, params);
}

}  // namespace eagle31rt::cuda
