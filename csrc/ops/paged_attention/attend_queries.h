// What the attention operators do with a split once its keys and values can be read: scores, weights and sums of some
// queries (row, head), and their merge into what earlier splits gave.
#pragma once

#include "ops/paged_attention/block_kernels.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

constexpr int kMaxQueries = 48;  // of one item; more gain nothing, the tile is then 4 % of the work
static_assert(kMaxQueries % 16 == 0, "the merge runs over whole vectors of queries");

constexpr float kMinusInfinity = -__builtin_inff();

// The queries of one item. kStride: query_stride() of the widest key.
template <int kStride>
struct QueryState {
  static constexpr int kQueryStride = kStride;
  alignas(64) float query[kMaxQueries * kStride];          // scaled
  alignas(64) float score[kMaxQueries * kAttentionSplit];  // then the weights p
  alignas(64) float split_output[kMaxQueries * kStride];   // o of the current split
  alignas(64) float output[kMaxQueries * kStride];         // O so far
  alignas(64) float split_max[kMaxQueries], split_sum[kMaxQueries];
  alignas(64) float max[kMaxQueries], sum[kMaxQueries];
  int end[kMaxQueries];  // visible positions of the current split end here
};

struct HeadDims {
  int key;
  int value;  // rounded up to a multiple of 32
};

Lanes finite_or_zero(Lanes m) { return select(less(broadcast(kMinusInfinity), m), m, zero()); }

// score[first .. end - 1] becomes the weights p; returns m and l of the split. Groups: vectors of 16 positions in use.
template <int Groups, bool Whole>
void softmax_groups(float* score, int first, int end, float* max, float* sum) {
  const Lanes lowest = broadcast(kMinusInfinity);
  Lanes x[Groups];
  Lanes most = lowest;
#pragma GCC unroll 4
  for (int g = 0; g < Groups; ++g) {
    x[g] = load(score + 16 * g);
    if (!Whole) {
      const LaneMask before = first_lanes(first < 16 * g ? 0 : first < 16 * g + 16 ? first - 16 * g : 16);
      const LaneMask until = first_lanes(end < 16 * g + 16 ? end - 16 * g : 16);
      x[g] = select(before, lowest, select(until, x[g], lowest));
    }
    most = maximum(most, x[g]);
  }
  *max = reduce_max(most);
  const Lanes shift = finite_or_zero(broadcast(*max));
  Lanes total = zero();
#pragma GCC unroll 4
  for (int g = 0; g < Groups; ++g) {
    const Lanes p = exp(sub(x[g], shift));
    store(score + 16 * g, p);
    total = add(total, p);
  }
  *sum = reduce_add(total);
}

void softmax_split(float* score, int first, int end, float* max, float* sum) {
  if (first == 0 && end == kAttentionSplit) return softmax_groups<4, true>(score, first, end, max, sum);
  if (end > 48) return softmax_groups<4, false>(score, first, end, max, sum);
  if (end > 32) return softmax_groups<3, false>(score, first, end, max, sum);
  if (end > 16) return softmax_groups<2, false>(score, first, end, max, sum);
  softmax_groups<1, false>(score, first, end, max, sum);
}

// m, l and o of queries begin .. end - 1 over the split's positions first .. w.end[query] - 1. w.end does not descend.
template <typename Blocks, typename State, typename Source>
void attend_source(State& w, const Source& source, const HeadDims& dims, int begin, int end, int first) {
  for (int q = begin; q < end; q += kMaxBlock) {
    const int count = end - q < kMaxBlock ? end - q : kMaxBlock;
    float* score = w.score + q * kAttentionSplit;
    Blocks::kScore[count](w.query + q * State::kQueryStride, source, dims.key, first, w.end[q + count - 1], score);
    for (int r = 0; r < count; ++r) {
      softmax_split(score + r * kAttentionSplit, first, w.end[q + r], &w.split_max[q + r], &w.split_sum[q + r]);
    }
  }
  for (int q = begin; q < end; q += kMaxBlock) {
    const int count = end - q < kMaxBlock ? end - q : kMaxBlock;
    const float* weight = w.score + q * kAttentionSplit;
    float* output = w.split_output + q * State::kQueryStride;
    // Together up to the shortest row, then each run of rows to its own end.
    int done = w.end[q];
    Blocks::kWeigh[count](weight, source, dims.value, first, done, false, output);
    for (int r = 1; r < count; ++r) {
      if (w.end[q + r] == done) continue;
      Blocks::kWeigh[count - r](weight + r * kAttentionSplit, source, dims.value, done, w.end[q + r], true,
                                output + r * State::kQueryStride);
      done = w.end[q + r];
    }
  }
}

// Folds the split into M, L and O of queries begin .. end - 1; those of other queries keep their bits.
template <typename State>
void merge_split(State& w, int begin, int end, int padded_dim) {
  alignas(64) float old_scale[kMaxQueries], new_scale[kMaxQueries];
  for (int q = begin / 16 * 16; q < end; q += 16) {
    const Lanes old_max = load(w.max + q), split_max = load(w.split_max + q);
    const Lanes max = maximum(old_max, split_max);
    const Lanes shift = finite_or_zero(max);
    const Lanes a = exp(sub(old_max, shift)), b = exp(sub(split_max, shift));
    const LaneMask before = first_lanes(begin > q ? begin - q : 0), until = first_lanes(end - q < 16 ? end - q : 16);
    store(w.max + q, select(before, old_max, select(until, max, old_max)));
    const Lanes old_sum = load(w.sum + q);
    const Lanes sum = multiply_add(old_sum, a, mul(load(w.split_sum + q), b));
    store(w.sum + q, select(before, old_sum, select(until, sum, old_sum)));
    store(old_scale + q, a);
    store(new_scale + q, b);
  }
  for (int q = begin; q < end; ++q) {
    const Lanes a = broadcast(old_scale[q]), b = broadcast(new_scale[q]);
    for (int d = 0; d < padded_dim; d += 16) {
      float* output = w.output + q * State::kQueryStride + d;
      store(output, multiply_add(load(output), a, mul(load(w.split_output + q * State::kQueryStride + d), b)));
    }
  }
}

}  // namespace

}  // namespace eagle31rt::E31_ISA
