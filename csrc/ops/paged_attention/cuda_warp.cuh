// The arithmetic of attention on matrix instructions, for the 16 queries of one warp. Scores and weights of a query
// stay in one row of the fragments, position n of a split always in column n; so a query's bits depend neither on its
// row nor on what the other rows hold.
#pragma once

#include "device/cuda/ptx.cuh"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::cuda {

constexpr int kScoreTiles = kAttentionSplit / 8;      // 8 positions wide
constexpr int kPositionSteps = kAttentionSplit / 16;  // 16 positions of the product with the values
constexpr float kMinusInfinity = -__builtin_huge_valf();
constexpr float kLog2E = 1.44269504f;

// Index 0 is the query in fragment row lane / 4, index 1 the one eight rows below. m is in powers of two.
template <int kValueTiles>
struct QueryState {
  float max[2];
  float sum[4];  // a fragment whose columns are all equal
  float output[kValueTiles][4];

  E31_DEVICE void clear() {
    max[0] = max[1] = kMinusInfinity;
    for (float& x : sum) x = 0.0f;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      for (float& x : output[n]) x = 0.0f;
    }
  }
  E31_DEVICE void scale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] *= factor[i / 2];
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) output[n][i] *= factor[i / 2];
    }
  }
};

E31_DEVICE float finite_or_zero(float max) { return max == kMinusInfinity ? 0.0f : max; }

// Factors of what is there and of what comes when a maximum grows; both are 1 or less.
struct MergeFactors {
  float max, old_scale, new_scale;
};
E31_DEVICE MergeFactors merge_factors(float old_max, float new_max) {
  const float max = fmaxf(old_max, new_max), shift = finite_or_zero(max);
  return {max, exp2f(old_max - shift), exp2f(new_max - shift)};
}
E31_DEVICE float merged(const MergeFactors& factors, float old_value, float new_value) {
  return fmaf(old_value, factors.old_scale, new_value * factors.new_scale);
}

// The final quotient. Adding 0 makes every zero positive: a sum's zero may have either sign, by what its row did not
// see.
E31_DEVICE float normalised(float output, float inverse_sum) { return output * inverse_sum + 0.0f; }

// score += query @ key^T for 16 queries and 8 * kTiles positions. Rows of both are `stride` elements apart.
template <int kKeyDim, int kTiles, typename Element>
E31_DEVICE void score_tiles(const Element* query, const Element* key, int stride, float (&score)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  query += lane % 16 * stride + lane / 16 * 8;
  key += (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll 4
  for (int k = 0; k < kKeyDim; k += 16) {
    uint32_t a[4];
    ldmatrix_x4(a, query + k);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, key + n * 8 * stride + k);
      mma_m16n8k16<Element>(score[n], a, b[0], b[1]);
      mma_m16n8k16<Element>(score[n + 1], a, b[2], b[3]);
    }
  }
}

// Positions of a split that a thread's two queries see: first[query] .. end[query] - 1.
struct Visible {
  int first[2], end[2];

  // Scores of tile n; others get -inf.
  E31_DEVICE void mask(int n, float (&score)[4]) const {
    const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = n * 8 + pair + i % 2;
      if (place < first[i / 2] || place >= end[i / 2]) score[i] = kMinusInfinity;
    }
  }
};

// Scores of 16 queries and all positions in shared memory, where several warps have put them. Read tile by tile: 32
// registers less.
template <int kStride>
struct SharedScores {
  static constexpr bool kRolled = true;  // loops over tiles need not be unrolled
  const float* row;                      // of the thread's upper query, at its pair of columns

  E31_DEVICE explicit SharedScores(const float* first_query)
      : row(first_query + static_cast<int>(threadIdx.x) % kWarpSize / 4 * kStride +
            static_cast<int>(threadIdx.x) % 4 * 2) {}
  E31_DEVICE void tile(int n, float (&score)[4]) const {
    const float2 upper = *reinterpret_cast<const float2*>(row + 8 * n);
    const float2 lower = *reinterpret_cast<const float2*>(row + 8 * n + 8 * kStride);
    score[0] = upper.x, score[1] = upper.y, score[2] = lower.x, score[3] = lower.y;
  }
};

template <int kStride, int kTiles>
E31_DEVICE void share_scores(const float (&score)[kTiles][4], float* first_query) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float2* row = reinterpret_cast<float2*>(first_query) + lane / 4 * (kStride / 2) + lane % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    row[4 * n] = make_float2(score[n][0], score[n][1]);
    row[4 * n + 4 * kStride] = make_float2(score[n][2], score[n][3]);
  }
}

// Scores in the registers of the one warp that has them all.
struct OwnScores {
  static constexpr bool kRolled = false;
  const float (&score)[kScoreTiles][4];

  E31_DEVICE void tile(int n, float (&copy)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy[i] = score[n][i];
  }
};

// Largest visible score of the thread's two queries.
template <typename Scores>
E31_DEVICE void largest_scores(const Scores& scores, const Visible& visible, float (&most)[2]) {
  most[0] = most[1] = kMinusInfinity;
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
    float s[4];
    scores.tile(n, s);
    visible.mask(n, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], s[i]);
  }
#pragma unroll
  for (float& m : most) {
    m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 1));
    m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, 2));
  }
}

// M becomes M' and the sums shrink to it; queries that are not selected keep their state. `shift` is what the weights
// take off the scores.
template <int kValueTiles, typename Scores>
E31_DEVICE void grow_maxima(const Scores& scores, const Visible& visible, const bool (&selected)[2],
                            QueryState<kValueTiles>& state, float (&shift)[2]) {
  float most[2], rescale[2];
  largest_scores(scores, visible, most);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float max = fmaxf(state.max[h], most[h]);
    shift[h] = finite_or_zero(max);
    rescale[h] = selected[h] ? exp2f(state.max[h] - shift[h]) : 1.0f;
    if (selected[h]) state.max[h] = max;
  }
  state.scale(rescale);
}

// The weights p = 2^(score - M') in the KV's 16-bit type, made when they are needed.
template <typename Element, typename Scores>
struct Weights {
  Scores scores;
  Visible visible;
  float shift[2];

  // Left operand of the product with the values of positions 16 step .. 16 step + 15.
  E31_DEVICE void fragment(int step, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float s[4];
      scores.tile(2 * step + i, s);
      visible.mask(2 * step + i, s);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[2 * i + h] = pack_pair<Element>(exp2f(s[2 * h] - shift[h]), exp2f(s[2 * h + 1] - shift[h]));
      }
    }
  }
};

// Both halves of a register hold this value.
template <typename Element>
constexpr uint32_t kOnes = 0x3f803f80u;
template <>
constexpr uint32_t kOnes<__half> = 0x3c003c00u;

// sum += weights @ 1 and output += weights @ values over the positions of kSteps steps; values: the first of these
// positions, at the warp's first dim.
template <int kFirstStep, int kSteps, typename Element, typename Scores, int kValueTiles>
E31_DEVICE void accumulate(const Weights<Element, Scores>& weights, const Element* values, int stride,
                           QueryState<kValueTiles>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  values += lane % 16 * stride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[4];
    weights.fragment(kFirstStep + k, a);
    mma_m16n8k16<Element>(state.sum, a, kOnes<Element>, kOnes<Element>);
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_transposed(b, values + k * 16 * stride + n * 8);
      mma_m16n8k16<Element>(state.output[n], a, b[0], b[1]);
      mma_m16n8k16<Element>(state.output[n + 1], a, b[2], b[3]);
    }
  }
}

// Clears the halves of b that stand for positions before `begin` and from `end` on; `place` is that of the lower half.
E31_DEVICE uint32_t keep_between(uint32_t b, int place, int begin, int end) {
  const bool lower = place >= begin && place < end, upper = place + 1 >= begin && place + 1 < end;
  return b & ((lower ? 0xffffu : 0u) | (upper ? 0xffff0000u : 0u));
}

template <typename Element>
E31_DEVICE void mma_if_selected(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                const bool (&selected)[2]) {
  float result[4] = {sum[0], sum[1], sum[2], sum[3]};
  mma_m16n8k16<Element>(result, a, b0, b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = selected[i / 2] ? result[i] : sum[i];
}

// The same for the selected queries alone and with the values of positions (within the split) before `begin` and from
// `end` on taken as 0, whatever they are: a product of 0 and NaN must not reach a query.
template <int kFirstStep, int kSteps, typename Element, typename Scores, int kValueTiles>
E31_DEVICE void accumulate_selected(const Weights<Element, Scores>& weights, const Element* values, int stride,
                                    int begin, int end, const bool (&selected)[2], QueryState<kValueTiles>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, pair = lane % 4 * 2;
  values += lane % 16 * stride + lane / 16 * 8;
#pragma unroll Scores::kRolled ? 1 : kSteps
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[4];
    weights.fragment(kFirstStep + k, a);
    mma_if_selected<Element>(state.sum, a, kOnes<Element>, kOnes<Element>, selected);
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_transposed(b, values + k * 16 * stride + n * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = keep_between(b[i], 16 * (kFirstStep + k) + i % 2 * 8 + pair, begin, end);
      mma_if_selected<Element>(state.output[n], a, b[0], b[1], selected);
      mma_if_selected<Element>(state.output[n + 1], a, b[2], b[3], selected);
    }
  }
}

// Whether rows begin .. end - 1 hold an infinity or a NaN within kDims columns.
template <int kDims, typename Element>
E31_DEVICE bool any_non_finite(const Element* values, int stride, int begin, int end) {
  constexpr uint32_t kExponent = kOnes<Element> == 0x3c003c00u ? 0x7c00u : 0x7f80u;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  bool found = false;
  for (int row = begin + lane % 8; row < end; row += 8) {  // eight rows hit different banks
    for (int dim = lane / 8 * 8; dim < kDims; dim += 32) {
      const uint4 chunk = *reinterpret_cast<const uint4*>(values + row * stride + dim);
      for (uint32_t word : {chunk.x, chunk.y, chunk.z, chunk.w}) {
        found |= (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
      }
    }
  }
  return __any_sync(kFullWarp, found);
}

}  // namespace eagle31rt::cuda
