// One layer of the paged KV cache.
//
//   value [num_pages, num_kv_heads, page_size, head_dim]
//   key   kTokensFastest (CPU): [num_pages, num_kv_heads, head_dim, page_size], the scores of a page are vector lanes
//         kDimsFastest (CUDA):  [num_pages, num_kv_heads, page_size, head_dim], rows for cp.async and ldmatrix
// Entry t of a request lies in page page_table[t / page_size] at offset t % page_size. Entries that were not written
// are garbage and may be NaN; an operator must never let them reach a result.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "eagle31rt/dtype.h"

namespace eagle31rt {

enum class KeyLayout : uint8_t { kTokensFastest, kDimsFastest };

struct KvCacheView {
  void* key;
  void* value;
  DType dtype;  // float32, bfloat16 or float16
  int64_t num_pages;
  int32_t page_size;  // 1 or more
  int32_t num_kv_heads;
  int32_t head_dim;
  KeyLayout key_layout = KeyLayout::kTokensFastest;

  E31_HOST_DEVICE int64_t key_index(int64_t page, int64_t head, int64_t dim, int64_t offset) const {
    if (key_layout == KeyLayout::kDimsFastest) return value_index(page, head, offset, dim);
    return ((page * num_kv_heads + head) * head_dim + dim) * page_size + offset;
  }
  E31_HOST_DEVICE int64_t value_index(int64_t page, int64_t head, int64_t offset, int64_t dim) const {
    return ((page * num_kv_heads + head) * page_size + offset) * head_dim + dim;
  }
};

}  // namespace eagle31rt
