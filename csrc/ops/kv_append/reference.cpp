#include "base/half.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

void store_rounded(void* base, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) static_cast<float*>(base)[index] = value;
  if (dtype == DType::kBFloat16) static_cast<uint16_t*>(base)[index] = float_to_bfloat16(value);
  if (dtype == DType::kFloat16) static_cast<uint16_t*>(base)[index] = float_to_float16(value);
}

}  // namespace

void kv_append(const KvAppendParams& p) {
  const KvCacheView& cache = p.cache;
  for (int64_t r = 0; r < p.num_rows; ++r) {
    if (p.slots[r] < 0) continue;
    const int64_t page = p.slots[r] / cache.page_size, offset = p.slots[r] % cache.page_size;
    for (int32_t h = 0; h < cache.num_kv_heads; ++h) {
      for (int32_t d = 0; d < cache.head_dim; ++d) {
        const int64_t source = r * p.row_stride + int64_t{h} * cache.head_dim + d;
        store_rounded(cache.key, cache.dtype, cache.key_index(page, h, d, offset), p.key[source]);
        store_rounded(cache.value, cache.dtype, cache.value_index(page, h, offset, d), p.value[source]);
      }
    }
  }
}

}  // namespace eagle31rt::reference
