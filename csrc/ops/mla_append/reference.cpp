#include "base/half.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

void mla_append(const MlaAppendParams& p) {
  const int32_t entry_dim = p.cache.entry_dim();
  for (int64_t r = 0; r < p.num_rows; ++r) {
    if (p.slots[r] < 0) continue;
    for (int32_t d = 0; d < entry_dim; ++d) {
      const float value = p.entries[r * p.row_stride + d];
      const int64_t index = p.slots[r] * entry_dim + d;  // pages lie one behind the other
      if (p.cache.dtype == DType::kFloat32) static_cast<float*>(p.cache.data)[index] = value;
      if (p.cache.dtype == DType::kBFloat16) static_cast<uint16_t*>(p.cache.data)[index] = float_to_bfloat16(value);
      if (p.cache.dtype == DType::kFloat16) static_cast<uint16_t*>(p.cache.data)[index] = float_to_float16(value);
    }
  }
}

}  // namespace eagle31rt::reference
