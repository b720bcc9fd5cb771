// Elementary functions defined once for every backend, so that the same logits give the same token everywhere.
//
// exp_float: Cody-Waite reduction to |r| <= ln2/2 and a degree-6 polynomial, every step an explicit fused multiply-add;
// relative error below 2^-22 over the whole range. Results that would be subnormal are 0; x > 88.7228 gives +inf; NaN
// stays NaN. The vector form in device/cpu/simd.h does the same operations in the same order.
//
// log_float: x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)] and a polynomial of degree 10 in f, fused likewise;
// relative error below 2^-23 over all positive floats, subnormal ones too. 0 gives -inf, +inf itself, negative numbers
// and NaN give NaN. Static for the reason given in base/philox.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"

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

E31_HOST_DEVICE inline float exp_float(float x) {
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

// log(1 + f) = f - f^2/2 + f^3 * (c0 + f * (c1 + ...)), minimax on [sqrt(1/2) - 1, sqrt(2) - 1]
constexpr float kLogC0 = 3.33333313e-1f;
constexpr float kLogC1 = -2.50008196e-1f;
constexpr float kLogC2 = 2.00012267e-1f;
constexpr float kLogC3 = -1.66233569e-1f;
constexpr float kLogC4 = 1.42017573e-1f;
constexpr float kLogC5 = -1.31601840e-1f;
constexpr float kLogC6 = 1.27615824e-1f;
constexpr float kLogC7 = -7.63450041e-2f;

E31_HOST_DEVICE static inline float log_float(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!(x > 0.0f)) return x == 0.0f ? -kInfinity : std::numeric_limits<float>::quiet_NaN();
  if (x == kInfinity) return x;
  constexpr float kSubnormalScale = 0x1p24f;
  const bool subnormal = x < std::numeric_limits<float>::min();
  const uint32_t bits = std::bit_cast<uint32_t>(subnormal ? x * kSubnormalScale : x);
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const int32_t exponent = static_cast<int32_t>(bits - kSqrtHalf) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent - (subnormal ? 24 : 0));
  float p = kLogC7;
  p = std::fma(p, f, kLogC6);
  p = std::fma(p, f, kLogC5);
  p = std::fma(p, f, kLogC4);
  p = std::fma(p, f, kLogC3);
  p = std::fma(p, f, kLogC2);
  p = std::fma(p, f, kLogC1);
  p = std::fma(p, f, kLogC0);
  const float square = f * f;
  float y = p * (f * square);
  y = std::fma(e, kLn2Low, y);
  y = std::fma(-0.5f, square, y);
  return std::fma(e, kLn2High, f + y);
}

}  // namespace eagle31rt::numerics
