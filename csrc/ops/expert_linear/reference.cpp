#include "ops/ops.h"

namespace eagle31rt::reference {

void expert_linear(const ExpertLinearParams& params) {
  for (int64_t expert = 0; expert < params.num_experts; ++expert) {
    const PackedWeightView weight = expert_weight(params, expert);
    for (int64_t place = params.expert_begin[expert]; place < params.expert_begin[expert + 1]; ++place) {
      const int64_t row = params.input_rows == nullptr ? place : params.input_rows[place];
      const float* input = params.input + row * weight.in_features;
      for (int64_t o = 0; o < weight.out_features; ++o) {
        double sum = 0;
        for (int64_t k = 0; k < weight.in_features; ++k) {
          sum += static_cast<double>(input[k]) * packed_value(weight, o, k);
        }
        if (params.bias != nullptr) sum += params.bias[expert * weight.out_features + o];
        params.output[place * weight.out_features + o] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace eagle31rt::reference
