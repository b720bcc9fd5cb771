// Elementary functions defined once for every backend, so that the same logits give the same token everywhere.
//
// exp_float: Cody-Waite reduction to |r| <= ln2/2 and a degree-6 polynomial, every step an explicit fused multiply-add;
// relative error below 2^-22 over the whole range. Results that would be subnormal are 0; x > 88.7228 gives +inf; NaN
// stays NaN. The vector form in device/cpu/simd.h does the same operations in the same order.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace eagle31rt::numerics {

constexpr float kExpUnderflow = -87.3365f;  // below: 0
constexpr float kExpOverflow = 88.7228f;    // above: +inf
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;    // exact in 10 bits, so n * kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4f;  // ln 2 - kLn2High
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
// exp(r) = 1 + r + r^2 * (c2 + r * (c3 + ...)), minimax on [-ln2/2, ln2/2]
constexpr float kExpC2 = 4.99999934e-1f;
constexpr float kExpC3 = 1.66665204e-1f;
constexpr float kExpC4 = 4.16683908e-2f;
constexpr float kExpC5 = 8.36874535e-3f;
constexpr float kExpC6 = 1.38145395e-3f;

inline float exp_float(float x) {
  if (std::isnan(x)) return x;
  if (x < kExpUnderflow) return 0.0f;
  if (x > kExpOverflow) return std::numeric_limits<float>::infinity();
  const float n = std::fma(x, kLog2E, kRoundMagic) - kRoundMagic;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = kExpC6;
  p = std::fma(p, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  p = std::fma(p, r * r, r) + 1.0f;
  // 2^n in two factors: n reaches 128, one past the largest exponent.
  const int32_t half = static_cast<int32_t>(n) >> 1;
  const int32_t rest = static_cast<int32_t>(n) - half;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
}

}  // namespace eagle31rt::numerics
