// Causal attention of packed ragged query rows over the paged KV cache; one operator for prefill, decode, verification
// and drafting. Grouped-query: head h reads KV head h / (num_heads / num_kv_heads).
//
// Request i owns rows row_begin[i] .. row_begin[i + 1] - 1, none if it pads a batch; rows from row_begin[num_requests]
// on belong to nobody, and nothing is written for them. Its row j (from 0) has the KV entry kv_length[i] + j, which
// kv_append has already stored: attention reads the stored (rounded) values also for this step's rows. Visible to it,
// in logical order:
//   no mask:  entries kv_begin[i] .. kv_length[i] + j
//   mask:     entries kv_begin[i] .. kv_length[i] - 1, then entries kv_length[i] + b for every set bit b of the row's
//             ancestor mask in ascending order, its own one (the last) included; others may be of an earlier pass
//
// With a sliding window a row sees the last sliding_window of these alone, itself among them, by logical position. With
// sinks the denominator of head h has exp(sinks[h]) added to it: a position that every row sees, whose value is 0.
//
// Arithmetic of one (row, head), which no company may change: logical positions are cut into splits of
// kAttentionSplit at fixed positions counted from 0 (an entry's logical position is its index for entries before
// kv_length[i]; the n-th masked entry has logical position kv_length[i] + n). Each split gives (m, l, o) by itself and
// the splits are merged in ascending order. So a row of a tree gets the bits that plain decoding of its path would have
// got, and splits may be computed anywhere. With t over the visible positions of a split, all in float32:
//
//   q'[d]  = query[d] * scale
//   s[t]   = chain over d ascending from 0 of fma(q'[d], key[t][d], s[t])
//   m      = max over t of s[t];  p[t] = exp(s[t] - (m = -inf ? 0 : m))
//   l      = 16 partial sums (position t in partial t % 16, ascending), joined by the tree of reduce_add (simd.h)
//   o[d]   = chain over t ascending from 0 of fma(p[t], value[t][d], o[d])
//   merge  (M, L, O) starts as (-inf, 0, 0), or (sinks[h], 1, 0); M' = max(M, m); a = exp(M - M'), b = exp(m - M') with
//   M' = 0 for -inf;
//          L = fma(L, a, l * b); O = fma(O, a, o * b)
//   output = O * (1 / L)
//
// What is not visible is never multiplied, not even by 0. A NaN or +inf among the visible scores makes that row and
// head NaN; so do scores that are all -inf, unless there is a sink.
#pragma once

#include <cstdint>

#include "ops/kv_append/kv_cache_view.h"

namespace eagle31rt {

constexpr int32_t kAttentionSplit = 64;
constexpr int32_t kMaxHeadDim = 256;  // and a multiple of 8

struct PagedAttentionParams {
  const float* query;  // [num_rows, query_stride]: num_heads heads of head_dim, rotated
  float* output;       // [num_rows, num_heads * head_dim]
  KvCacheView cache;
  const int32_t* page_table;      // [num_requests, page_table_stride]
  const int32_t* row_begin;       // [num_requests + 1]
  const int32_t* kv_begin;        // [num_requests] first visible KV index, <= kv_length (a draft's index 0 is empty)
  const int32_t* kv_length;       // [num_requests] KV entries before this step's rows
  const uint64_t* ancestor_mask;  // [num_rows, mask_words] or null; word 0 first
  int64_t num_requests;
  int64_t num_rows;
  int64_t query_stride;  // elements between rows
  int32_t page_table_stride;
  int32_t mask_words;  // 64-bit words per row
  int32_t num_heads;
  float scale;                   // usually head_dim^-0.5
  const float* sinks = nullptr;  // [num_heads] or null
  int32_t sliding_window = 0;    // logical positions that a row sees, itself included; 0: all
};

}  // namespace eagle31rt
