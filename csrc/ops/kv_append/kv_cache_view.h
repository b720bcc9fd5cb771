// One layer of the paged KV cache.
//
// Keys are stored with tokens as the fastest axis, so that the scores of a page's tokens are vector lanes:
//   key   [num_pages, num_kv_heads, head_dim, page_size]
//   value [num_pages, num_kv_heads, page_size, head_dim]
// Entry t of a request lies in page page_table[t / page_size] at offset t % page_size. Entries that were not written
// are garbage and may be NaN; an operator must never let them reach a result.
#pragma once

#include <cstdint>

#include "eagle31rt/dtype.h"

namespace eagle31rt {

struct KvCacheView {
  void* key;
  void* value;
  DType dtype;  // float32, bfloat16 or float16
  int64_t num_pages;
  int32_t page_size;  // 1 or more
  int32_t num_kv_heads;
  int32_t head_dim;

  int64_t key_index(int64_t page, int64_t head, int64_t dim, int64_t offset) const {
    return ((page * num_kv_heads + head) * head_dim + dim) * page_size + offset;
  }
  int64_t value_index(int64_t page, int64_t head, int64_t offset, int64_t dim) const {
    return ((page * num_kv_heads + head) * page_size + offset) * head_dim + dim;
  }
};

}  // namespace eagle31rt
