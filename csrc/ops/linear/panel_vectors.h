// One hardware vector, and how a vector of weights is read out of a packed panel row.
//
// A panel row (kPanelWidth = 32 weights of one input feature) is read in kPieces pieces. Piece p gives two vectors:
// outputs p * kVecWidth .. and outputs 16 + p * kVecWidth ..; for bfloat16 these are the even and the odd halves of the
// same bytes, so that both come from one load.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "device/cpu/simd.h"

namespace eagle31rt::E31_ISA {

#if defined(__AVX512F__)

using Vec = __m512;
constexpr int kVecWidth = 16;
constexpr int kMaxBlockRows = 12;  // 24 accumulators, two vectors of weights and one input of 32 registers

inline Vec vec_zero() { return _mm512_setzero_ps(); }
inline Vec vec_broadcast(const float* p) { return _mm512_set1_ps(*p); }
inline Vec vec_load(const float* p) { return _mm512_loadu_ps(p); }
inline void vec_store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
inline Vec vec_multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec vec_load_float16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void load_bfloat16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

#elif defined(__AVX2__)

using Vec = __m256;
constexpr int kVecWidth = 8;
constexpr int kMaxBlockRows = 6;  // 12 accumulators, two vectors of weights and one input of 16 registers

inline Vec vec_zero() { return _mm256_setzero_ps(); }
inline Vec vec_broadcast(const float* p) { return _mm256_broadcast_ss(p); }
inline Vec vec_load(const float* p) { return _mm256_loadu_ps(p); }
inline void vec_store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
inline Vec vec_multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec vec_load_float16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void load_bfloat16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

#else  // 4-wide GCC and Clang vectors: SSE2 on plain x86-64, NEON on aarch64

typedef float Vec __attribute__((vector_size(16)));
typedef uint32_t VecBits __attribute__((vector_size(16)));
constexpr int kVecWidth = 4;
constexpr int kMaxBlockRows = 6;

inline Vec vec_zero() { return Vec{}; }
inline Vec vec_broadcast(const float* p) { return Vec{*p, *p, *p, *p}; }
inline Vec vec_load(const float* p) {
  Vec a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
inline void vec_store(float* p, Vec a) { std::memcpy(p, &a, sizeof(a)); }
#if defined(__aarch64__)
inline Vec vec_multiply_add(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec vec_load_float16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
#else
// A rounded product, like multiply_add of the generic Lanes.
inline Vec vec_multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec vec_load_float16(const uint16_t* p) {
  return Vec{float16_to_float(p[0]), float16_to_float(p[1]), float16_to_float(p[2]), float16_to_float(p[3])};
}
#endif
inline void load_bfloat16_pair(const uint16_t* p, Vec& even, Vec& odd) {
  VecBits both;
  std::memcpy(&both, p, sizeof(both));
  const VecBits low = both << 16;
  const VecBits high = both & 0xffff0000u;
  std::memcpy(&even, &low, sizeof(low));
  std::memcpy(&odd, &high, sizeof(high));
}

#endif

constexpr int kPieces = 16 / kVecWidth;

// The stored element types; a struct each, since two of them are 16 bits.
struct Float32Weights {
  using Element = float;
  static void load_pair(const Element* row, int piece, Vec& first, Vec& second) {
    first = vec_load(row + piece * kVecWidth);
    second = vec_load(row + 16 + piece * kVecWidth);
  }
};
struct Float16Weights {
  using Element = uint16_t;
  static void load_pair(const Element* row, int piece, Vec& first, Vec& second) {
    first = vec_load_float16(row + piece * kVecWidth);
    second = vec_load_float16(row + 16 + piece * kVecWidth);
  }
};
struct BFloat16Weights {
  using Element = uint16_t;
  static void load_pair(const Element* row, int piece, Vec& first, Vec& second) {
    load_bfloat16_pair(row + 2 * piece * kVecWidth, first, second);
  }
};

}  // namespace eagle31rt::E31_ISA
