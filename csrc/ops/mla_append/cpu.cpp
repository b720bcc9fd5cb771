#include "base/half.h"
#include "ops/for_each_row.h"
#include "ops/mla_append/mla_append.h"

namespace eagle31rt::E31_ISA {

namespace {

template <typename Storage, typename Round>
void append_row(const MlaAppendParams& p, int64_t row, Round round) {
  const int64_t entry_dim = p.cache.latent_dim + p.cache.rope_dim;
  const float* source = p.entries + row * p.row_stride;
  Storage* entry = static_cast<Storage*>(p.cache.data) + p.slots[row] * entry_dim;  // pages lie one behind the other
  for (int64_t d = 0; d < entry_dim; ++d) entry[d] = round(source[d]);
}

}  // namespace

void mla_append(const MlaAppendParams& p, ExecutionContext& context) {
  // Rounding makes an element about 8 times as dear as in a plain pass.
  for_each_row(context, p.num_rows, int64_t{8} * (p.cache.latent_dim + p.cache.rope_dim), [&](int64_t row) {
    if (p.slots[row] < 0) return;
    if (p.cache.dtype == DType::kFloat32) return append_row<float>(p, row, [](float x) { return x; });
    if (p.cache.dtype == DType::kBFloat16) return append_row<uint16_t>(p, row, float_to_bfloat16);
    append_row<uint16_t>(p, row, float_to_float16);
  });
}

}  // namespace eagle31rt::E31_ISA
