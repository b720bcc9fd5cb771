// The arithmetic of ratio-based verification, as plain functions: the operator compares their results with coins, and
// the tests integrate the coins out. Static for the reason given in base/philox.h.
#pragma once

#include <cstdint>

namespace eagle31rt::rules {

constexpr double kResidualUnit = 0x1p60;  // residual weights are integers, so their sum has no order

// An id's share of an integer law; 0 in an empty law. A weight is at most 2^44: the signed conversion is exact, and has
// an instruction everywhere.
static inline double probability(uint64_t weight, uint64_t total) {
  return total > 0 ? static_cast<double>(static_cast<int64_t>(weight)) / static_cast<double>(total) : 0.0;
}

// Strict: a coin may be 0, and what has probability 0 must never stand.
static inline bool stands(double coin, double probability) { return coin < probability; }

// min(1, scale * p / q), exactly 1 where scale * p >= q > 0 or q = 0 < p; 0 where p is 0. With scale 1 it is the
// acceptance of kStandard; with the ratio of the prefix before it, the ratio P_i of kBlock.
static inline double acceptance_ratio(double scale, double p, double q) {
  const double scaled = scale * p;
  if (!(scaled > 0.0)) return 0.0;
  return scaled >= q ? 1.0 : scaled / q;
}

// floor(max(scale * p - q, 0) * 2^60): the unnormalised law after a refusal.
static inline uint64_t residual_weight(double scale, double p, double q) {
  const double rest = scale * p - q;
  return static_cast<uint64_t>(static_cast<int64_t>((rest > 0.0 ? rest : 0.0) * kResidualUnit));
}

// kBlock: probability that the prefix of this ratio stands, given that no longer one does; residual_total is the sum of
// the residual weights of the row after it.
static inline double block_acceptance(double ratio, uint64_t residual_total) {
  const double rest = static_cast<double>(residual_total) / kResidualUnit;
  const double denominator = rest + (1.0 - ratio);
  return denominator > 0.0 ? rest / denominator : 1.0;
}

}  // namespace eagle31rt::rules
