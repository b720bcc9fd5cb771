// One (layer, request) per item. A path of 4 in a layer of 3 heads of 64 is 2.3 KB: values and keys with kDimsFastest
// are rows, keys with kTokensFastest are a strided column each, 2 bytes to a cache line, which is what dominates.
#include "device/execution_context.h"
#include "ops/compact_kv/moves.h"
#include "ops/for_each_row.h"

namespace eagle31rt::E31_ISA {

namespace {

template <typename Element>
void move_entry(const KvCacheView& cache, const KvMove& move) {
  const int64_t page_size = cache.page_size, head_dim = cache.head_dim;
  const int64_t to_page = move.destination / page_size, to = move.destination % page_size;
  const int64_t from_page = move.source / page_size, from = move.source % page_size;
  auto* const key = static_cast<Element*>(cache.key);
  auto* const value = static_cast<Element*>(cache.value);
  const size_t row_bytes = static_cast<size_t>(head_dim) * sizeof(Element);
  for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
    const int64_t to_row = cache.value_index(to_page, head, to, 0);
    const int64_t from_row = cache.value_index(from_page, head, from, 0);
    __builtin_memcpy(value + to_row, value + from_row, row_bytes);
    if (cache.key_layout == KeyLayout::kDimsFastest) {
      __builtin_memcpy(key + to_row, key + from_row, row_bytes);
      continue;
    }
    Element* to_column = key + cache.key_index(to_page, head, 0, to);
    const Element* from_column = key + cache.key_index(from_page, head, 0, from);
    for (int64_t d = 0; d < head_dim; ++d) to_column[d * page_size] = from_column[d * page_size];
  }
}

}  // namespace

void compact_kv(const CompactKvParams& params, ExecutionContext& context) {
  const auto move_one = dtype_size(params.cache.dtype) == 4 ? move_entry<uint32_t> : move_entry<uint16_t>;
  const int64_t num_layers = num_cache_layers(params);
  // About 4 moves each; the strided keys make an element about 8 times as dear as in a plain pass.
  const int64_t cost = int64_t{4} * 8 * params.cache.num_kv_heads * params.cache.head_dim;
  for_each_row(context, num_layers * params.num_requests, cost, [&](int64_t item) {
    const KvCacheView& cache = cache_layer(params, static_cast<int32_t>(item / params.num_requests));
    const int64_t request = item % params.num_requests;
    for (int32_t place = 1; place <= params.num_accepted[request]; ++place) {
      const KvMove move = kv_move(params, request, place);
      if (move.source >= 0) move_one(cache, move);
    }
  });
}

}  // namespace eagle31rt::E31_ISA
