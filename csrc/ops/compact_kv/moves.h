// Which slots of a request move. Static for the reason given in base/philox.h.
#pragma once

#include "base/host_device.h"
#include "ops/compact_kv/compact_kv.h"

namespace eagle31rt {

struct KvMove {
  int64_t source;  // negative: nothing moves
  int64_t destination;
};

// Entry `place` of the path; the root (0) stays where it is.
E31_HOST_DEVICE static inline KvMove kv_move(const CompactKvParams& params, int64_t request, int32_t place) {
  const int64_t begin = params.row_begin[request];
  const int64_t source = params.slots[begin + params.path_rows[begin + place]];
  const int64_t destination = params.slots[begin + place];
  const bool moves = source >= 0 && destination >= 0 && source != destination;
  return {moves ? source : -1, destination};
}

E31_HOST_DEVICE static inline int32_t num_cache_layers(const CompactKvParams& params) {
  return params.layers == nullptr ? 1 : params.num_layers;
}

E31_HOST_DEVICE static inline const KvCacheView& cache_layer(const CompactKvParams& params, int32_t layer) {
  return params.layers == nullptr ? params.cache : params.layers[layer];
}

}  // namespace eagle31rt
