#include "ops/ops.h"

namespace eagle31rt::reference {

void linear(const LinearParams& params) {
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const float* input = params.input + r * params.input_stride;
    for (int64_t o = 0; o < params.weight.out_features; ++o) {
      double sum = 0;
      for (int64_t k = 0; k < params.weight.in_features; ++k) {
        sum += static_cast<double>(input[k]) * packed_value(params.weight, o, k);
      }
      if (params.bias != nullptr) sum += params.bias[o];
      if (params.residual != nullptr) sum += params.residual[r * params.output_stride + o];
      params.output[r * params.output_stride + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace eagle31rt::reference
