#include <cmath>

#include "ops/ops.h"

namespace eagle31rt::reference {

void rms_norm(const RmsNormParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    float* residual = p.residual + r * p.residual_stride;
    float* output = p.output + r * p.output_stride;
    double sum = 0;
    for (int64_t i = 0; i < p.hidden_size; ++i) {
      if (p.delta != nullptr) residual[i] += p.delta[r * p.hidden_size + i];
      sum += static_cast<double>(residual[i]) * residual[i];
    }
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(p.hidden_size) + p.epsilon);
    for (int64_t i = 0; i < p.hidden_size; ++i) output[i] = static_cast<float>(residual[i] * inverse * p.weight[i]);
  }
}

}  // namespace eagle31rt::reference
