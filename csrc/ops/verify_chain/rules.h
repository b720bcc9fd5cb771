// The arithmetic of ratio-based verification, as plain functions: the operator compares their results with coins, and
// the tests integrate the coins out. Static for the reason given in base/philox.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace eagle31rt::rules {

constexpr double kResidualUnit = 0x1p60;  // residual weights are integers, so their sum has no order

// What turns the weights of a law into shares; 0 for an empty law.
E31_HOST_DEVICE static inline double inverse_total(uint64_t total) {
  return total > 0 ? 1.0 / static_cast<double>(total) : 0.0;
}

// An id's share of an integer law. Weights are at most 2^44, so the conversion by way of the mantissa is exact; it
// vectorises everywhere, a packed int64 conversion only with AVX-512. Equal laws have equal shares, bit for bit.
E31_HOST_DEVICE static inline double probability(uint64_t weight, double inverse) {
  const uint64_t bits = weight | 0x4330000000000000u;  // 2^52 + weight
  double shifted;
  std::memcpy(&shifted, &bits, sizeof(shifted));
  return (shifted - 0x1p52) * inverse;
}

// Strict: a coin may be 0, and what has probability 0 must never stand.
E31_HOST_DEVICE static inline bool stands(double coin, double probability) { return coin < probability; }

// min(1, scale * p / q), exactly 1 where scale * p >= q > 0 or q = 0 < p; 0 where p is 0. With scale 1 it is the
// acceptance of kStandard; with the ratio of the prefix before it, the ratio P_i of kBlock.
E31_HOST_DEVICE static inline double acceptance_ratio(double scale, double p, double q) {
  const double scaled = scale * p;
  if (!(scaled > 0.0)) return 0.0;
  return scaled >= q ? 1.0 : scaled / q;
}

// max(scale * p - q, 0) * 2^60: the unnormalised law after a refusal. Its floor is the weight.
E31_HOST_DEVICE static inline double residual(double scale, double p, double q) {
  const double rest = scale * p - q;
  int64_t bits;  // cleared by sign: the compiler may not vectorise a comparison of floats, which could trap
  std::memcpy(&bits, &rest, sizeof(bits));
  bits = bits < 0 ? 0 : bits;
  double positive;
  std::memcpy(&positive, &bits, sizeof(positive));
  return positive * kResidualUnit;
}

E31_HOST_DEVICE static inline uint64_t residual_weight(double residual) {
  return static_cast<uint64_t>(static_cast<int64_t>(residual));  // the signed conversion has an instruction everywhere
}

// kBlock: probability that the prefix of this ratio stands, given that no longer one does; residual_total is the sum of
// the residual weights of the row after it.
E31_HOST_DEVICE static inline double block_acceptance(double ratio, uint64_t residual_total) {
  const double rest = static_cast<double>(residual_total) / kResidualUnit;
  const double denominator = rest + (1.0 - ratio);
  return denominator > 0.0 ? rest / denominator : 1.0;
}

}  // namespace eagle31rt::rules
