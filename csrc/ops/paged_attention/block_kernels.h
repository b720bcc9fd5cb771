// The two products of attention for a few queries (row, head) that share keys and values, held in registers: scores of
// R queries x 16 V positions, outputs of R queries x 16 V dims. Every query's sum runs in its own lanes in the same
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
constexpr int kFewQueries = kMaxBlock / 2;  // these take the wide blocks

// Where keys and values come from is a Source: TileSource or PageSource of kv_source.h. It also says how many floats
// lie between the queries that read it (kQueryStride).

// score[r][t .. t + 16 V - 1]; query [R][kQueryStride], score [R][kAttentionSplit].
template <int R, int V, typename Source>
void score_block(const float* query, const Source& source, int head_dim, int t, float* score) {
  Lanes sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = zero();
  }
  for (int d = 0; d < head_dim; ++d) {
    Lanes k[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) k[v] = source.key(d, t + 16 * v);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes q = broadcast(query[r * Source::kQueryStride + d]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(q, k[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(score + r * kAttentionSplit + t + 16 * v, sum[r][v]);
  }
}

// output[r][d .. d + 16 V - 1] over positions begin .. end - 1, from 0 or (resume) from what output holds.
template <int R, int V, typename Source>
void value_block(const float* weight, const Source& source, int d, int begin, int end, bool resume, float* output) {
  Lanes sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = resume ? load(output + r * Source::kQueryStride + d + 16 * v) : zero();
  }
  for (int t = begin; t < end; ++t) {
    Lanes x[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) x[v] = source.value(t, d + 16 * v);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes p = broadcast(weight[r * kAttentionSplit + t]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(p, x[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(output + r * Source::kQueryStride + d + 16 * v, sum[r][v]);
  }
}

template <int R>
constexpr int kVectors = R <= kFewQueries ? kWide : kNarrow;

// Positions first .. end - 1 (and some around them that callers must ignore) of R queries.
template <int R, typename Source>
void score_queries(const float* query, const Source& source, int head_dim, int first, int end, float* score) {
  constexpr int kStep = 16 * kVectors<R>;
  for (int t = first / kStep * kStep; t < end; t += kStep) {
    score_block<R, kVectors<R>>(query, source, head_dim, t, score);
  }
}

// All dims of R queries; padded_dim is a multiple of 32.
template <int R, typename Source>
void weigh_values(const float* weight, const Source& source, int padded_dim, int begin, int end, bool resume,
                  float* output) {
  constexpr int kStep = 16 * kVectors<R>;
  int d = 0;
  for (; d + kStep <= padded_dim; d += kStep) {
    value_block<R, kVectors<R>>(weight, source, d, begin, end, resume, output);
  }
  if (d < padded_dim) value_block<R, 2>(weight, source, d, begin, end, resume, output);
}

// Entry R of the tables handles R queries.
template <typename Source, int... R>
struct BlockTable {
  using Score = void (*)(const float*, const Source&, int, int, int, float*);
  using Weigh = void (*)(const float*, const Source&, int, int, int, bool, float*);
  static constexpr Score kScore[] = {nullptr, score_queries<R, Source>...};
  static constexpr Weigh kWeigh[] = {nullptr, weigh_values<R, Source>...};
};
#if defined(__AVX512F__)
template <typename Source>
using Blocks = BlockTable<Source, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
template <typename Source>
using SmallBlocks = BlockTable<Source, 1, 2, 3, 4, 5, 6>;
#elif defined(__AVX2__)
template <typename Source>
using Blocks = BlockTable<Source, 1, 2, 3, 4, 5, 6>;
template <typename Source>
using SmallBlocks = BlockTable<Source, 1, 2, 3>;
#else
template <typename Source>
using Blocks = BlockTable<Source, 1, 2, 3>;
template <typename Source>
using SmallBlocks = BlockTable<Source, 1>;
#endif

}  // namespace

}  // namespace eagle31rt::E31_ISA
