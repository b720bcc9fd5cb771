#include "base/half.h"
#include "ops/for_each_row.h"
#include "ops/kv_append/kv_append.h"

namespace eagle31rt::E31_ISA {

namespace {

struct Float32 {
  using Storage = float;
  static float round(float value) { return value; }
};
struct BFloat16 {
  using Storage = uint16_t;
  static uint16_t round(float value) { return float_to_bfloat16(value); }
};
struct Float16 {
  using Storage = uint16_t;
  static uint16_t round(float value) { return float_to_float16(value); }
};

template <typename Format>
void append_row(const KvAppendParams& p, int64_t row) {
  using Storage = typename Format::Storage;
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  const int64_t page_size = p.cache.page_size, head_dim = p.cache.head_dim;
  const int64_t page = slot / page_size, offset = slot % page_size;
  for (int64_t head = 0; head < p.cache.num_kv_heads; ++head) {
    const int64_t block = (page * p.cache.num_kv_heads + head) * head_dim * page_size;
    Storage* key = static_cast<Storage*>(p.cache.key) + block + offset;
    Storage* value = static_cast<Storage*>(p.cache.value) + block + offset * head_dim;
    const float* key_row = p.key + row * p.row_stride + head * head_dim;
    const float* value_row = p.value + row * p.row_stride + head * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) key[d * page_size] = Format::round(key_row[d]);
    for (int64_t d = 0; d < head_dim; ++d) value[d] = Format::round(value_row[d]);
  }
}

}  // namespace

void kv_append(const KvAppendParams& p, ExecutionContext& context) {
  const auto append = p.cache.dtype == DType::kFloat32    ? append_row<Float32>
                      : p.cache.dtype == DType::kBFloat16 ? append_row<BFloat16>
                                                          : append_row<Float16>;
  // Rounding and the strided key stores make an element about 8 times as dear as in a plain pass.
  const int64_t row_cost = int64_t{16} * p.cache.num_kv_heads * p.cache.head_dim;
  for_each_row(context, p.num_rows, row_cost, [&](int64_t row) { append(p, row); });
}

}  // namespace eagle31rt::E31_ISA
