// The integer arithmetic of the sampling law (sample.h), one id or one row at a time: shared by the reference, the
// vectorised operators and verification. Static for the reason given in base/philox.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace eagle31rt::law {

constexpr int kWeightBits = 44;
constexpr uint64_t kUnitWeight = uint64_t{1} << kWeightBits;  // the weight of the largest logit
constexpr int64_t kMaxVocabSize = (int64_t{1} << 20) - 1;     // sums stay below 2^64

E31_HOST_DEVICE static inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Ascending with the logit; -0 and +0 share a key.
E31_HOST_DEVICE static inline uint32_t ordered_key(float logit) {
  const uint32_t bits = float_bits(logit + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// floor(e * 2^44) for e in [0, 1]; NaN and subnormals give 0. Shifts only: there is no packed float to int64 conversion
// before AVX-512.
E31_HOST_DEVICE static inline uint64_t weight_of(float e) {
  const uint32_t bits = float_bits(e);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t below_one = 127u - ((bits >> 23) & 0xffu);  // wraps for NaN
  const uint32_t shift = below_one < 63u ? below_one : 63u;
  return (mantissa << (kWeightBits - 23)) >> shift;
}

// The smallest weight that min_p keeps: ceil(min_p * 2^44), at least 1.
E31_HOST_DEVICE static inline uint64_t min_weight(float min_p) {
  if (!(min_p > 0.0f)) return 1;
  if (min_p >= 1.0f) return kUnitWeight;
  const double exact = static_cast<double>(min_p) * static_cast<double>(kUnitWeight);
  const uint64_t floor = static_cast<uint64_t>(exact);
  return floor + (static_cast<double>(floor) < exact ? 1 : 0);
}

// The mass that a top_p prefix must reach: ceil(top_p * total) exactly, at least 1.
E31_HOST_DEVICE static inline uint64_t nucleus_mass(float top_p, uint64_t total) {
  if (top_p >= 1.0f) return total;
  const uint32_t bits = float_bits(top_p);
  const uint32_t exponent = bits >> 23;           // top_p = mantissa * 2^(exponent - 150)
  if (exponent < 50 || exponent > 126) return 1;  // below 2^-76: less than 1 of any total; or not in (0, 1)
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 150 - exponent;
  const unsigned __int128 one = 1;
  const unsigned __int128 product = static_cast<unsigned __int128>(total) * mantissa + ((one << shift) - 1);
  const uint64_t mass = static_cast<uint64_t>(product >> shift);
  return mass > 0 ? mass : 1;
}

// floor(bits * total / 2^64): uniform in [0, total) up to 2^-20 of a unit of mass.
E31_HOST_DEVICE static inline uint64_t draw_threshold(uint64_t bits, uint64_t total) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * total) >> 64);
}

}  // namespace eagle31rt::law
