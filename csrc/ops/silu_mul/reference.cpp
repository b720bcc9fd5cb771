#include <cmath>

#include "ops/ops.h"

namespace eagle31rt::reference {

void silu_mul(const SiluMulParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    const float* gate = p.input + r * 2 * p.intermediate_size;
    const float* up = gate + p.intermediate_size;
    for (int64_t i = 0; i < p.intermediate_size; ++i) {
      const double silu = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i])));
      p.output[r * p.intermediate_size + i] = static_cast<float>(silu * up[i]);
    }
  }
}

}  // namespace eagle31rt::reference
