// Number formats that C++ lacks, and how PTX treats NaN and denormals.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ptxsim {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The NaN that PTX's arithmetic produces. x86 would pass on a payload, and which operand's depends on how the compiler
// ordered them, so that the bits of a result would depend on whether the vector or the scalar loop made it.
constexpr uint32_t kNan32 = 0x7fffffff;
constexpr uint64_t kNan64 = 0x7ff8000000000000;
constexpr uint16_t kNan16 = 0x7fff;

inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(kNan32); }
inline double canonical(double x) { return x == x ? x : std::bit_cast<double>(kNan64); }

// .ftz: a denormal becomes a zero of its sign.
template <bool kFlush>
inline float flush(float x) {
  if constexpr (kFlush) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
  } else {
    return x;
  }
}

// .sat: clamps to [0, 1]; NaN becomes 0.
template <class T>
inline T saturate(T x) {
  const T low = x > T(0) ? x : T(0);
  return low < T(1) ? low : T(1);
}

inline float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline float to_float(Half x) {
  // Exponent and mantissa in the place of a float's, then the bias put right by a product, which is exact, for
  // denormals too. Infinity and NaN (exponent 31) have to be lifted to 255.
  const uint32_t magnitude = uint32_t{x.bits & 0x7fffu} << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) | (magnitude >= 0x0f800000u ? 0x7f800000u : 0u);
  return std::bit_cast<float>(bits | uint32_t{x.bits & 0x8000u} << 16);
}

// Nearest, ties to even.
inline BFloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? kNan16 : rounded)};
}

inline Half to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  // Normal results: the bias changes by 112 and 13 bits of the mantissa go.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Denormal results (below 2^-14): adding 0.5 lets the float unit round at 2^-24, the last place of 0.5f.
  const uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  uint32_t result = magnitude < (113u << 23) ? denormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and above round to infinity
  result = magnitude > 0x7f800000u ? kNan16 : result | (bits >> 16 & 0x8000u);
  return {static_cast<uint16_t>(result)};
}

enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp, kNearestAway };

// The value to an integer, in a rounding mode.
inline double round_integer(double x, Rounding mode) {
  switch (mode) {
    case Rounding::kNearest:
      return std::nearbyint(x);
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
    case Rounding::kNearestAway:
      return std::round(x);
  }
  return x;
}

// Bits of the nearest value of a binary format with denormals, an infinity and `mantissa_bits` stored bits, whose least
// normal exponent is `min_exponent` and largest `max_exponent`. Not for NaN.
inline uint32_t encode(double x, int mantissa_bits, int min_exponent, int max_exponent, Rounding mode) {
  const uint32_t infinity = static_cast<uint32_t>(max_exponent - min_exponent + 2) << mantissa_bits;
  const bool negative = std::signbit(x);
  const double magnitude = std::fabs(x);
  if (magnitude == 0) return 0;
  if (std::isinf(x)) return infinity;
  if (negative && mode == Rounding::kDown)
    mode = Rounding::kUp;
  else if (negative && mode == Rounding::kUp)
    mode = Rounding::kDown;
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  if (exponent > max_exponent + 1) return mode == Rounding::kZero || mode == Rounding::kDown ? infinity - 1 : infinity;
  const auto steps = static_cast<uint32_t>(round_integer(std::ldexp(magnitude, mantissa_bits - exponent), mode));
  const uint32_t bits = (static_cast<uint32_t>(exponent - min_exponent) << mantissa_bits) + steps;
  if (bits < infinity) return bits;
  return mode == Rounding::kZero || mode == Rounding::kDown ? infinity - 1 : infinity;
}

inline Half to_half(double x, Rounding mode = Rounding::kNearest) {
  if (x != x) return {kNan16};
  return {static_cast<uint16_t>(encode(x, 10, -14, 15, mode) | (std::signbit(x) ? 0x8000u : 0u))};
}

inline BFloat16 to_bfloat16(double x, Rounding mode = Rounding::kNearest) {
  if (x != x) return {kNan16};
  return {static_cast<uint16_t>(encode(x, 7, -126, 127, mode) | (std::signbit(x) ? 0x8000u : 0u))};
}

// a * b + c for values of at most 12 bits: the product is exact, and the sum, where double cannot hold it, is rounded
// to odd, so that the rounding to the narrow format that follows is right.
inline double fused_for_narrow(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - product, error = (product - (sum - part)) + (c - part);
  const auto bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1) != 0) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// min and max: NaN loses against a number, -0 is less than +0.
inline float minimum(float a, float b) {
  const float equal = std::bit_cast<float>(std::bit_cast<uint32_t>(a) | std::bit_cast<uint32_t>(b));
  const float ordered = a < b ? a : a > b ? b : equal;
  return canonical(a != a ? b : b != b ? a : ordered);
}

inline float maximum(float a, float b) {
  const float equal = std::bit_cast<float>(std::bit_cast<uint32_t>(a) & std::bit_cast<uint32_t>(b));
  const float ordered = a > b ? a : a < b ? b : equal;
  return canonical(a != a ? b : b != b ? a : ordered);
}

inline double minimum(double a, double b) {
  if (a != a || b != b) return canonical(a != a ? b : a);
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

inline double maximum(double a, double b) {
  if (a != a || b != b) return canonical(a != a ? b : a);
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

}  // namespace ptxsim
