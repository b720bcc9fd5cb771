// Sixteen float lanes on every instruction set.
//
// An operator's cpu.cpp is compiled once per instruction set (macro E31_ISA = generic, avx2, avx512) and uses this
// type, so that lane i means the same everywhere: one AVX-512 register, two AVX2 registers, or four 4-wide ones. All
// variants that have fused multiply-add therefore give the same bits.
//
// Only headers without functions of external linkage may be included by a cpu.cpp: an inline function compiled here
// with AVX-512 could be the copy that the linker keeps for everybody. Everything lives in a namespace of its own.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "base/numerics.h"

#ifndef E31_ISA
#error "compile this file as part of an instruction-set variant (E31_ISA)"
#endif

namespace eagle31rt::E31_ISA {

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};
using LaneMask = __mmask16;

inline Lanes zero() { return {_mm512_setzero_ps()}; }
inline Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline LaneMask first_lanes(int n) { return static_cast<LaneMask>((1u << n) - 1u); }  // n in 0..16
inline Lanes load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_partial(float* p, Lanes a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline Lanes load_bfloat16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline Lanes load_float16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes fused_multiply_add(Lanes a, Lanes b, Lanes c) { return multiply_add(a, b, c); }
inline LaneMask less(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Lanes select(LaneMask m, Lanes if_true, Lanes if_false) {
  return {_mm512_mask_blend_ps(m, if_false.v, if_true.v)};
}
// 2^n for integral lanes n in [-126, 127]
inline Lanes power_of_two(Lanes n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// floor(n / 2) for integral lanes
inline Lanes floor_half(Lanes n) { return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_cvtps_epi32(n.v), 1))}; }

#elif defined(__AVX2__)

struct Lanes {
  __m256 lo, hi;
};
struct LaneMask {
  __m256 lo, hi;
};

inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline LaneMask first_lanes(int n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), index))};
}
inline Lanes load_partial(const float* p, int n) {
  const LaneMask m = first_lanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
inline void store_partial(float* p, Lanes a, int n) {
  const LaneMask m = first_lanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}
inline __m256 widen_bfloat16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline Lanes load_bfloat16(const uint16_t* p) {
  return {widen_bfloat16(_mm_loadu_si128((const __m128i*)p)), widen_bfloat16(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline Lanes load_float16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes fused_multiply_add(Lanes a, Lanes b, Lanes c) { return multiply_add(a, b, c); }
inline LaneMask less(Lanes a, Lanes b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline Lanes select(LaneMask m, Lanes if_true, Lanes if_false) {
  return {_mm256_blendv_ps(if_false.lo, if_true.lo, m.lo), _mm256_blendv_ps(if_false.hi, if_true.hi, m.hi)};
}
inline __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Lanes power_of_two(Lanes n) { return {power_of_two(n.lo), power_of_two(n.hi)}; }
inline __m256 floor_half(__m256 n) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_cvtps_epi32(n), 1)); }
inline Lanes floor_half(Lanes n) { return {floor_half(n.lo), floor_half(n.hi)}; }

#else  // GCC and Clang vectors: SSE2 on plain x86-64, NEON on aarch64

typedef float VectorFloat __attribute__((vector_size(64)));
typedef int32_t VectorInt __attribute__((vector_size(64)));

struct Lanes {
  VectorFloat v;
};
struct LaneMask {
  VectorInt v;
};

inline Lanes zero() { return {VectorFloat{}}; }
inline Lanes broadcast(float x) { return {x - VectorFloat{}}; }
inline Lanes load(const float* p) {
  Lanes a;
  std::memcpy(&a.v, p, sizeof(a.v));
  return a;
}
inline void store(float* p, Lanes a) { std::memcpy(p, &a.v, sizeof(a.v)); }
inline LaneMask first_lanes(int n) {
  const VectorInt index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return {index < n};
}
inline Lanes load_partial(const float* p, int n) {
  Lanes a = zero();
  for (int i = 0; i < n; ++i) a.v[i] = p[i];
  return a;
}
inline void store_partial(float* p, Lanes a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
inline Lanes load_bfloat16(const uint16_t* p) {
  VectorInt bits;
  for (int i = 0; i < 16; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
  Lanes a;
  std::memcpy(&a.v, &bits, sizeof(bits));
  return a;
}
inline float float16_to_float(uint16_t half) {
  // Exact: shift into float position, then scale the exponent by 2^112; subnormals come out right from the product.
  uint32_t bits = static_cast<uint32_t>(half & 0x7fffu) << 13;
  float magnitude;
  std::memcpy(&magnitude, &bits, 4);
  magnitude *= 5.192296858534828e33f;  // 2^112
  std::memcpy(&bits, &magnitude, 4);
  if ((half & 0x7c00u) == 0x7c00u) bits = 0x7f800000u | (static_cast<uint32_t>(half & 0x3ffu) << 13);
  if ((half & 0x7c00u) == 0x7c00u && (half & 0x3ffu) != 0) bits |= 0x400000u;
  bits |= static_cast<uint32_t>(half & 0x8000u) << 16;
  std::memcpy(&magnitude, &bits, 4);
  return magnitude;
}
inline Lanes load_float16(const uint16_t* p) {
  Lanes a;
  for (int i = 0; i < 16; ++i) a.v[i] = float16_to_float(p[i]);
  return a;
}
inline Lanes add(Lanes a, Lanes b) { return {a.v + b.v}; }
inline Lanes sub(Lanes a, Lanes b) { return {a.v - b.v}; }
inline Lanes mul(Lanes a, Lanes b) { return {a.v * b.v}; }
inline Lanes div(Lanes a, Lanes b) { return {a.v / b.v}; }
inline Lanes fused_multiply_add(Lanes a, Lanes b, Lanes c) {
  for (int i = 0; i < 16; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return fused_multiply_add(a, b, c); }
#else
// No fused instruction here: a rounded product. This is the arithmetic of the generic variant, in body and tail alike.
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {a.v * b.v + c.v}; }
#endif
inline LaneMask less(Lanes a, Lanes b) { return {a.v < b.v}; }
inline Lanes select(LaneMask m, Lanes if_true, Lanes if_false) { return {m.v ? if_true.v : if_false.v}; }
inline Lanes power_of_two(Lanes n) {
  const VectorInt bits = (__builtin_convertvector(n.v, VectorInt) + 127) << 23;
  Lanes a;
  std::memcpy(&a.v, &bits, sizeof(bits));
  return a;
}
inline Lanes floor_half(Lanes n) {
  return {__builtin_convertvector(__builtin_convertvector(n.v, VectorInt) >> 1, VectorFloat)};
}

#endif

// max(a, b) that returns b where a is NaN, where b is, and where they are equal (the rule of x86's own instruction).
#if defined(__AVX512F__)
inline Lanes maximum(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
#elif defined(__AVX2__)
inline Lanes maximum(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
#else
inline Lanes maximum(Lanes a, Lanes b) { return select(less(b, a), a, b); }
#endif

// Sum and maximum of the lanes in one fixed tree: halves of 8, 4, 2, 1.
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
inline __m256 low_half(Lanes a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(Lanes a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 low_half(Lanes a) { return a.lo; }
inline __m256 high_half(Lanes a) { return a.hi; }
#endif
inline float reduce_add(Lanes a) {
  const __m256 x8 = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
inline float reduce_max(Lanes a) {
  const __m256 x8 = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
#else
inline float reduce_add(Lanes a) {
  float x[16];
  store(x, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] + x[i + width];
  }
  return x[0];
}
inline float reduce_max(Lanes a) {
  float x[16];
  store(x, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  }
  return x[0];
}
#endif

// The same operations as numerics::exp_float, lane by lane (NaN lanes stay NaN).
inline Lanes exp(Lanes x) {
  using namespace numerics;
  const Lanes magic = broadcast(kRoundMagic);
  // Out-of-range lanes are computed from a harmless value and replaced at the end.
  const LaneMask low = less(x, broadcast(kExpUnderflow));
  const LaneMask high = less(broadcast(kExpOverflow), x);
  const Lanes safe = select(low, zero(), select(high, zero(), x));
  const Lanes n = sub(fused_multiply_add(safe, broadcast(kLog2E), magic), magic);
  Lanes r = fused_multiply_add(n, broadcast(-kLn2High), safe);
  r = fused_multiply_add(n, broadcast(-kLn2Low), r);
  Lanes p = broadcast(kExpC6);
  p = fused_multiply_add(p, r, broadcast(kExpC5));
  p = fused_multiply_add(p, r, broadcast(kExpC4));
  p = fused_multiply_add(p, r, broadcast(kExpC3));
  p = fused_multiply_add(p, r, broadcast(kExpC2));
  p = add(fused_multiply_add(p, mul(r, r), r), broadcast(1.0f));
  const Lanes half = floor_half(n);
  const Lanes y = mul(mul(p, power_of_two(half)), power_of_two(sub(n, half)));
  return select(low, zero(), select(high, broadcast(__builtin_inff()), y));
}

// How an element type in memory becomes lanes; a template parameter of operators that read weights or a KV cache.
struct StoredFloat32 {
  using Element = float;
  static Lanes widen(const float* p) { return load(p); }
};
struct StoredBFloat16 {
  using Element = uint16_t;
  static Lanes widen(const uint16_t* p) { return load_bfloat16(p); }
};
struct StoredFloat16 {
  using Element = uint16_t;
  static Lanes widen(const uint16_t* p) { return load_float16(p); }
};

}  // namespace eagle31rt::E31_ISA
