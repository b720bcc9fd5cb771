// Writes this step's latent entries into the paged cache, rounded to its dtype (nearest even). An operator of its own
// because kv_append writes keys and values, and here they are the same memory.
#pragma once

#include <cstdint>

#include "ops/mla_append/latent_cache_view.h"

namespace eagle31rt {

struct MlaAppendParams {
  const float* entries;  // [num_rows, row_stride]: latent_dim + rope_dim each
  const int64_t* slots;  // [num_rows]: page * page_size + offset; a negative slot is skipped
  LatentCacheView cache;
  int64_t num_rows;
  int64_t row_stride;  // elements between rows
};

}  // namespace eagle31rt
