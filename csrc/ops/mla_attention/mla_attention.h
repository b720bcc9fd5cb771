// Causal multi-head latent attention in its absorbed form, for packed ragged query rows over the paged latent cache.
// All heads share one entry a position: its latent_dim + rope_dim elements are the key, the first latent_dim of them
// also the value. Queries come absorbed (the key up-projection is applied to them) and with their rope part rotated;
// the caller applies the value up-projection to the output. Prefill runs absorbed as well: chunks then have the bits of
// the whole.
//
// Requests, rows, visibility, ancestor masks, splits of kAttentionSplit logical positions, their merge and the meaning
// of NaN and infinity are those of paged_attention (paged_attention.h): it is that operator with one KV head, keys of
// latent_dim + rope_dim and values of latent_dim elements. On the CPU also the order of its sums.
#pragma once

#include <cstdint>

#include "ops/mla_append/latent_cache_view.h"

namespace eagle31rt {

constexpr int32_t kMaxLatentDim = 512;  // latent_dim and rope_dim are multiples of 8
constexpr int32_t kMaxLatentEntry = 576;

struct MlaAttentionParams {
  const float* query;  // [num_rows, query_stride]: num_heads heads of latent_dim + rope_dim
  float* output;       // [num_rows, num_heads * latent_dim]
  LatentCacheView cache;
  const int32_t* page_table;      // [num_requests, page_table_stride]
  const int32_t* row_begin;       // [num_requests + 1]
  const int32_t* kv_begin;        // [num_requests] first visible index, <= kv_length
  const int32_t* kv_length;       // [num_requests] entries before this step's rows
  const uint64_t* ancestor_mask;  // [num_rows, mask_words] or null; word 0 first
  int64_t num_requests;
  int64_t num_rows;
  int64_t query_stride;  // elements between rows
  int32_t page_table_stride;
  int32_t mask_words;  // 64-bit words per row
  int32_t num_heads;
  float scale;  // that of the heads before absorption (and YaRN's factor), not latent_dim^-0.5
};

}  // namespace eagle31rt
