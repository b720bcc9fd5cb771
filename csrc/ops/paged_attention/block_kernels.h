// The two products of attention for a few queries (row, head) that share a KV tile, held in registers: scores of R
// queries x 16 V positions, outputs of R queries x 16 V dims. Every query's sum runs in its own lanes in the same
// order whatever R and V are, so they may follow the register file: 12 x 2 fills the 32 registers of AVX-512 with 24
// sums, 6 x 1 the 16 of AVX2 with 12, and few queries (decoding) take twice the width to keep both FMA pipes busy.
#pragma once

#include "device/cpu/simd.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kMaxBlock = 12, kNarrow = 2, kWide = 4;
#elif defined(__AVX2__)
constexpr int kMaxBlock = 6, kNarrow = 1, kWide = 2;
#else
constexpr int kMaxBlock = 3, kNarrow = 1, kWide = 2;
#endif

// Floats between queries: 17 cache lines, so that the queries of a block do not share cache sets.
constexpr int kQueryStride = kMaxHeadDim + 16;

// score[r][t] for t in [0, 16 V); query [R][kQueryStride], key [head_dim][kAttentionSplit].
template <int R, int V>
void score_block(const float* query, const float* key, int head_dim, float* score) {
  Lanes sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = zero();
  }
  for (int d = 0; d < head_dim; ++d) {
    Lanes k[V];
    for (int v = 0; v < V; ++v) k[v] = load(key + d * kAttentionSplit + 16 * v);
    for (int r = 0; r < R; ++r) {
      const Lanes q = broadcast(query[r * kQueryStride + d]);
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(q, k[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(score + r * kAttentionSplit + 16 * v, sum[r][v]);
  }
}

// output[r][d] for d in [0, 16 V) over positions begin .. end - 1, from 0 or (resume) from what output holds.
template <int R, int V>
void value_block(const float* weight, const float* value, int value_stride, int begin, int end, bool resume,
                 float* output) {
  Lanes sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = resume ? load(output + r * kQueryStride + 16 * v) : zero();
  }
  for (int t = begin; t < end; ++t) {
    Lanes x[V];
    for (int v = 0; v < V; ++v) x[v] = load(value + t * value_stride + 16 * v);
    for (int r = 0; r < R; ++r) {
      const Lanes p = broadcast(weight[r * kAttentionSplit + t]);
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(p, x[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(output + r * kQueryStride + 16 * v, sum[r][v]);
  }
}

// All positions [0, num_positions rounded up) of R queries.
template <int R>
void score_queries(const float* query, const float* key, int head_dim, int first, int end, float* score) {
  constexpr int V = 2 * R <= kMaxBlock ? kWide : kNarrow;
  for (int t = first / (16 * V) * (16 * V); t < end; t += 16 * V) {
    score_block<R, V>(query, key + t, head_dim, score + t);
  }
}

// All dims of R queries; padded_dim is a multiple of 32.
template <int R>
void weigh_values(const float* weight, const float* value, int padded_dim, int begin, int end, bool resume,
                  float* output) {
  constexpr int V = 2 * R <= kMaxBlock ? kWide : kNarrow;
  int d = 0;
  for (; d + 16 * V <= padded_dim; d += 16 * V) {
    value_block<R, V>(weight, value + d, padded_dim, begin, end, resume, output + d);
  }
  if (d < padded_dim) value_block<R, kNarrow>(weight, value + d, padded_dim, begin, end, resume, output + d);
}

using ScoreFunction = void (*)(const float*, const float*, int, int, int, float*);
using WeighFunction = void (*)(const float*, const float*, int, int, int, bool, float*);

template <int... R>
struct BlockTable {
  static constexpr ScoreFunction kScore[] = {nullptr, score_queries<R>...};
  static constexpr WeighFunction kWeigh[] = {nullptr, weigh_values<R>...};
};
// Entry R handles R queries, up to kMaxBlock.
#if defined(__AVX512F__)
using Blocks = BlockTable<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#elif defined(__AVX2__)
using Blocks = BlockTable<1, 2, 3, 4, 5, 6>;
#else
using Blocks = BlockTable<1, 2, 3>;
#endif

}  // namespace

}  // namespace eagle31rt::E31_ISA
