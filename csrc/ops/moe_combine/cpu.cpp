#include "device/cpu/simd.h"
#include "ops/for_each_row.h"
#include "ops/moe_combine/moe_combine.h"

namespace eagle31rt::E31_ISA {

void moe_combine(const MoeCombineParams& p, ExecutionContext& context) {
  const int64_t n = p.hidden_size;
  for_each_row(context, p.num_rows, p.top_k * n, [&](int64_t r) {
    const float* weights = p.weights + r * p.top_k;
    const int32_t* places = p.places + r * p.top_k;
    for (int64_t i = 0; i < n; i += 16) {
      const int count = static_cast<int>(n - i < 16 ? n - i : 16);
      Lanes sum = zero();
      for (int32_t j = 0; j < p.top_k; ++j) {
        sum = fused_multiply_add(broadcast(weights[j]), load_partial(p.expert_output + places[j] * n + i, count), sum);
      }
      if (p.base != nullptr) sum = add(load_partial(p.base + r * n + i, count), sum);
      store_partial(p.output + r * n + i, sum, count);
    }
  });
}

}  // namespace eagle31rt::E31_ISA
