#include <cmath>

#include "ops/ops.h"

namespace eagle31rt::reference {

void rms_norm(const RmsNormParams& p) {
  for (int64_t g = 0; g < p.num_rows * p.num_groups; ++g) {
    const int64_t row = g / p.num_groups, offset = g % p.num_groups * p.hidden_size;
    float* residual = p.residual + row * p.residual_stride + offset;
    float* output = p.output + row * p.output_stride + offset;
    double sum = 0;
    for (int64_t i = 0; i < p.hidden_size; ++i) {
      if (p.delta != nullptr) residual[i] += p.delta[g * p.hidden_size + i];
      sum += static_cast<double>(residual[i]) * residual[i];
    }
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(p.hidden_size) + p.epsilon);
    for (int64_t i = 0; i < p.hidden_size; ++i) output[i] = static_cast<float>(residual[i] * inverse * p.weight[i]);
  }
}

}  // namespace eagle31rt::reference
