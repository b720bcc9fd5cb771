// Causal attention of packed ragged query rows over the paged KV cache; one operator for prefill, decode, verification
// and drafting. Grouped-query: head h reads KV head h / (num_heads / num_kv_heads).
//
// Request i owns rows row_begin[i] .. row_begin[i + 1] - 1. Its row j (from 0) has the KV entry kv_length[i] + j, which
// kv_append has already stored: attention reads the stored (rounded) values also for this step's rows. Visible to it,
// in logical order:
//   no mask:  entries kv_begin[i] .. kv_length[i] + j
//   mask:     entries kv_begin[i] .. kv_length[i] - 1, then entries kv_length[i] + b for every set bit b of the row's
//             ancestor mask in ascending order (bit j itself included): a node of a tree sees its own path only
//
// Arithmetic of one (row, head), which no company may change: logical positions are cut into splits of
// kAttentionSplit at fixed positions counted from 0 (an entry's logical position is its index for entries before
// kv_length[i]; the n-th masked entry has logical position kv_length[i] + n). Splits are merged in ascending order.
// So a row of a tree gets the bits that plain decoding of its path would have got.
#pragma once

#include <cstdint>

#include "ops/kv_append/kv_cache_view.h"

namespace eagle31rt {

constexpr int32_t kAttentionSplit = 64;

struct PagedAttentionParams {
  const float* query;             // [num_rows, query_stride]: num_heads heads of head_dim, rotated
  float* output;                  // [num_rows, num_heads * head_dim]
  KvCacheView cache;
  const int32_t* page_table;      // [num_requests, page_table_stride]
  const int32_t* row_begin;       // [num_requests + 1]
  const int32_t* kv_begin;        // [num_requests] first visible KV index (a draft's index 0 holds nothing)
  const int32_t* kv_length;       // [num_requests] KV entries before this step's rows
  const uint64_t* ancestor_mask;  // [num_rows, mask_words] or null; bits of rows of the same request
  int64_t num_requests;
  int64_t num_rows;
  int64_t query_stride;           // elements between rows
  int32_t page_table_stride;
  int32_t mask_words;             // 64-bit words per row
  int32_t num_heads;
  float scale;                    // usually head_dim^-0.5
};

}  // namespace eagle31rt
