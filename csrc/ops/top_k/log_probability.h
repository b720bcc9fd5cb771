// The log-probability of top_k.h and token_logprobs.h from the integer mass of a row. Static for the reason given in
// base/philox.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/numerics.h"
#include "ops/sample/law.h"

namespace eagle31rt::top_k_law {

// `total`: the sum of weights, 2^44 or more unless max_logit is +inf.
E31_HOST_DEVICE static inline float log_of_mass(uint64_t total) {
  return numerics::log_float(static_cast<float>(total) * (1.0f / static_cast<float>(law::kUnitWeight)));
}

// is_best: of the first of the largest logits.
E31_HOST_DEVICE static inline float log_probability(bool is_best, float logit, float max_logit, float log_mass) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (max_logit == kInfinity) return is_best ? 0.0f : -kInfinity;
  return (logit - max_logit) - log_mass;
}

}  // namespace eagle31rt::top_k_law
