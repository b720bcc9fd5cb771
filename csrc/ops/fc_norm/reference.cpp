#include <cmath>
#include <vector>

#include "ops/ops.h"

namespace eagle31rt::reference {

void fc_norm(const FcNormParams& params) {
  const int64_t in_features = params.chunk_size * params.num_chunks;
  const int64_t norm_size = params.mode == FcNormMode::kWhole ? in_features : params.chunk_size;
  std::vector<double> normed(static_cast<size_t>(in_features));
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const float* row = params.captured + r * in_features;
    for (int64_t i = 0; i < in_features; ++i) normed[i] = row[i];
    for (int64_t begin = 0; begin < in_features && params.mode != FcNormMode::kNone; begin += norm_size) {
      double sum = 0;
      for (int64_t i = begin; i < begin + norm_size; ++i) sum += normed[i] * normed[i];
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(norm_size) + params.epsilon);
      for (int64_t i = begin; i < begin + norm_size; ++i) normed[i] *= scale * params.norm_weight[i];
    }
    for (int64_t o = 0; o < params.weight.out_features; ++o) {
      double sum = params.bias != nullptr ? params.bias[o] : 0.0;
      for (int64_t k = 0; k < in_features; ++k) sum += normed[k] * packed_value(params.weight, o, k);
      params.output[r * params.weight.out_features + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace eagle31rt::reference
