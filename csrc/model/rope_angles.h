// Cosine and sine of rotary positions, one formula for every pass: computed in double, rounded once to float32.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace eagle31rt {

class RopeAngles {
 public:
  explicit RopeAngles(const RopeConfig& config);

  int32_t half_dim() const { return static_cast<int32_t>(inverse_frequency_.size()); }
  const std::vector<double>& inverse_frequency() const { return inverse_frequency_; }
  double attention_factor() const { return attention_factor_; }

  // positions [num_rows] -> cosine, sine [num_rows, half_dim], multiplied by the attention factor.
  void compute(const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const;

 private:
  std::vector<double> inverse_frequency_;
  double attention_factor_ = 1.0;
};

}  // namespace eagle31rt
