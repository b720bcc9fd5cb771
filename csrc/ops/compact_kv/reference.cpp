#include <cstring>

#include "ops/compact_kv/moves.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

void copy_element(void* base, int64_t element_size, int64_t destination, int64_t source) {
  auto* bytes = static_cast<char*>(base);
  std::memcpy(bytes + destination * element_size, bytes + source * element_size, static_cast<size_t>(element_size));
}

void move_entry(const KvCacheView& cache, const KvMove& move) {
  const int64_t size = dtype_size(cache.dtype);
  const int64_t to_page = move.destination / cache.page_size, to = move.destination % cache.page_size;
  const int64_t from_page = move.source / cache.page_size, from = move.source % cache.page_size;
  for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
    for (int64_t d = 0; d < cache.head_dim; ++d) {
      copy_element(cache.key, size, cache.key_index(to_page, h, d, to), cache.key_index(from_page, h, d, from));
      copy_element(cache.value, size, cache.value_index(to_page, h, to, d), cache.value_index(from_page, h, from, d));
    }
  }
}

}  // namespace

void compact_kv(const CompactKvParams& params) {
  for (int32_t layer = 0; layer < num_cache_layers(params); ++layer) {
    for (int64_t request = 0; request < params.num_requests; ++request) {
      for (int32_t place = 1; place <= params.num_accepted[request]; ++place) {
        const KvMove move = kv_move(params, request, place);
        if (move.source >= 0) move_entry(cache_layer(params, layer), move);
      }
    }
  }
}

}  // namespace eagle31rt::reference
