// One layer of the paged cache of multi-head latent attention: an entry is the normalised latent followed by the
// rotated key part that all heads share, and serves as key (whole) and as value (its latent).
//
//   [num_pages, page_size, latent_dim + rope_dim] on every device
//
// Entry t of a request lies in page page_table[t / page_size] at offset t % page_size. Entries that were not written
// are garbage and may be NaN; an operator must never let them reach a result.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "eagle31rt/dtype.h"

namespace eagle31rt {

struct LatentCacheView {
  void* data;
  DType dtype;  // float32, bfloat16 or float16
  int64_t num_pages;
  int32_t page_size;   // 1 or more
  int32_t latent_dim;  // 512 in published models
  int32_t rope_dim;    // 64 there

  E31_HOST_DEVICE int32_t entry_dim() const { return latent_dim + rope_dim; }
  E31_HOST_DEVICE int64_t index(int64_t page, int64_t offset, int64_t dim) const {
    return (page * page_size + offset) * entry_dim() + dim;
  }
};

}  // namespace eagle31rt
