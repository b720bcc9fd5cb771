// Writes this step's keys and values into the paged cache, rounded to its dtype (nearest even).
#pragma once

#include <cstdint>

#include "ops/kv_append/kv_cache_view.h"

namespace eagle31rt {

struct KvAppendParams {
  const float* key;      // [num_rows, row_stride]: num_kv_heads heads of head_dim
  const float* value;    // [num_rows, row_stride]
  const int64_t* slots;  // [num_rows]: page * page_size + offset; a negative slot is skipped
  KvCacheView cache;
  int64_t num_rows;
  int64_t row_stride;  // elements between rows
};

}  // namespace eagle31rt
