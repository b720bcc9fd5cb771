#include "ops/ops.h"

namespace eagle31rt::reference {

void moe_combine(const MoeCombineParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    for (int64_t i = 0; i < p.hidden_size; ++i) {
      double sum = p.base == nullptr ? 0.0 : p.base[r * p.hidden_size + i];
      for (int64_t j = r * p.top_k; j < (r + 1) * p.top_k; ++j) {
        sum += static_cast<double>(p.weights[j]) * p.expert_output[p.places[j] * p.hidden_size + i];
      }
      p.output[r * p.hidden_size + i] = static_cast<float>(sum);
    }
  }
}

}  // namespace eagle31rt::reference
