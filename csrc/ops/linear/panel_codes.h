// Widens a block of a quantised panel into the rows of a plain one, in the element type that the panel kernel reads.
//
// The plain kernel then does the same arithmetic on the same elements, so the bits are those of the dequantised weight.
// A block of 128 features takes 8 KiB in 16 bits and stays in the first-level cache: memory sees the codes only.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "ops/linear/packed_weight.h"
#include "ops/linear/panel_vectors.h"

namespace eagle31rt::E31_ISA {

typedef uint32_t PanelBits __attribute__((vector_size(4 * kVecWidth)));
typedef int32_t PanelInts __attribute__((vector_size(4 * kVecWidth)));
typedef float PanelFloats __attribute__((vector_size(4 * kVecWidth)));
typedef uint8_t PanelBytes __attribute__((vector_size(kVecWidth)));

// kVecWidth bytes, each in a lane of 32 bits.
inline PanelBits load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<PanelBits>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<PanelBits>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  PanelBytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, PanelBits);
#endif
}
inline PanelBits bits_of(PanelFloats a) { return reinterpret_cast<PanelBits>(a); }
inline PanelFloats floats_of(PanelBits a) { return reinterpret_cast<PanelFloats>(a); }
inline PanelFloats convert(PanelBits a) { return __builtin_convertvector(reinterpret_cast<PanelInts>(a), PanelFloats); }

struct Int4Codes {
  static constexpr WeightCode kCode = WeightCode::kInt4;
  static constexpr bool kIsExact = false;  // in bfloat16, times the scale
  static constexpr float kPrescale = 1.0f;
#if defined(__AVX512F__)
  // By the lowest four bits, whatever lies above. One instruction for the mask, the sum and the conversion.
  static PanelFloats value(PanelBits code) {
    const __m512 values = _mm512_setr_ps(-8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f, 0.0f, 1.0f, 2.0f, 3.0f,
                                         4.0f, 5.0f, 6.0f, 7.0f);
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(code), values);
  }
#else
  static PanelFloats value(PanelBits code) { return convert((code & 15u) - 8u); }
#endif
};

struct Fp4Codes {
  static constexpr WeightCode kCode = WeightCode::kFp4;
  static constexpr bool kIsExact = true;  // two bits times a power of two
  static constexpr float kPrescale = 1.0f;
#if defined(__AVX512F__)
  static PanelFloats value(PanelBits code) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                         -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(code), values);
  }
#elif defined(__AVX2__)
  static PanelFloats value(PanelBits code) {
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);  // by the lowest three bits
    const PanelFloats magnitude = _mm256_permutevar8x32_ps(values, reinterpret_cast<__m256i>(code));
    return floats_of(bits_of(magnitude) | (code & 8u) << 28);
  }
#else
  // The fields as a float32 with its bias; a subnormal times a power of two would be right too, but slow.
  static PanelFloats value(PanelBits code) {
    const PanelFloats normal = floats_of(((code & 7u) << 22) + (126u << 23));
    const PanelFloats small = convert(code & 1u) * 0.5f;
    const PanelBits is_small = reinterpret_cast<PanelBits>((code & 6u) == 0u);
    return floats_of((bits_of(small) & is_small) | (bits_of(normal) & ~is_small) | (code & 8u) << 28);
  }
#endif
};

struct Fp8Codes {
  static constexpr WeightCode kCode = WeightCode::kFp8;
  static constexpr bool kIsExact = false;
#if defined(__AVX512F__) || defined(__AVX2__)
  // As a float16 with the same exponent field, which is the value times 2^-8: the scale makes up for it, exactly.
  static constexpr float kPrescale = 256.0f;
#if defined(__AVX512F__)
  static PanelFloats load(const uint8_t* p) {
    const __m256i bytes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(-0x4001)));
  }
#else
  static PanelFloats load(const uint8_t* p) {
    const __m128i bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(bytes, 7), _mm_set1_epi16(-0x4001)));
  }
#endif
#else
  static constexpr float kPrescale = 1.0f;
  static PanelFloats load(const uint8_t* p) {
    const PanelBits code = load_bytes(p);
    const PanelFloats normal = floats_of(((code & 0x7fu) << 20) + (120u << 23));
    const PanelFloats small = convert(code & 7u) * 0x1p-9f;
    const PanelBits is_small = reinterpret_cast<PanelBits>((code & 0x78u) == 0u);
    return floats_of((bits_of(small) & is_small) | (bits_of(normal) & ~is_small) | (code & 0x80u) << 24);
  }
#endif
};

// Outputs piece * kVecWidth .. and 16 + piece * kVecWidth .. of one feature, times their scales.
template <typename Codes>
inline void dequantise_pair(const uint8_t* row, int piece, const float* scales, PanelFloats (&pair)[2]) {
  if constexpr (Codes::kCode == WeightCode::kFp8) {
    pair[0] = Codes::load(row + piece * kVecWidth);
    pair[1] = Codes::load(row + 16 + piece * kVecWidth);
  } else {
    const PanelBits codes = load_bytes(row + piece * kVecWidth);
    pair[0] = Codes::value(codes);
    pair[1] = Codes::value(codes >> 4);
  }
  for (int half = 0; half < 2; ++half) {
    PanelFloats scale;
    std::memcpy(&scale, scales + 16 * half + piece * kVecWidth, sizeof(scale));
    pair[half] *= scale;
  }
}

template <typename Codes>
inline PanelBits bfloat16_bits(PanelFloats value) {  // in the upper half, to nearest even; finite values
  const PanelBits bits = bits_of(value);
  return Codes::kIsExact ? bits : bits + 0x7fffu + (bits >> 16 & 1u);
}

inline void store_float16(uint16_t* p, PanelFloats a) {
#if defined(__AVX512F__)
  const __m256i halves = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &halves, sizeof(halves));
#elif defined(__AVX2__)
  const __m128i halves = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &halves, sizeof(halves));
#else
  for (int i = 0; i < kVecWidth; ++i) p[i] = float_to_float16(a[i]);
#endif
}

// One pair into the row of a plain panel, as Weights::load_pair reads it.
template <typename Codes>
inline void store_pair(Float32Weights, void* row, int piece, const PanelFloats (&pair)[2]) {
  for (int half = 0; half < 2; ++half) {
    std::memcpy(static_cast<float*>(row) + 16 * half + piece * kVecWidth, &pair[half], sizeof(pair[half]));
  }
}
template <typename Codes>
inline void store_pair(Float16Weights, void* row, int piece, const PanelFloats (&pair)[2]) {
  for (int half = 0; half < 2; ++half) {
    store_float16(static_cast<uint16_t*>(row) + 16 * half + piece * kVecWidth, pair[half]);
  }
}
template <typename Codes>
inline void store_pair(BFloat16Weights, void* row, int piece, const PanelFloats (&pair)[2]) {
  const PanelBits both = bfloat16_bits<Codes>(pair[0]) >> 16 | (bfloat16_bits<Codes>(pair[1]) & 0xffff0000u);
  std::memcpy(static_cast<uint16_t*>(row) + 2 * piece * kVecWidth, &both, sizeof(both));
}

// The scales of a group of a panel, widened.
inline void widen_scales(ScaleType type, const uint8_t* source, float* scales) {
  if (type == ScaleType::kFloat32) {
    std::memcpy(scales, source, kPanelWidth * sizeof(float));
    return;
  }
  uint32_t bits[kPanelWidth];
  if (type == ScaleType::kBFloat16) {
    uint16_t halves[kPanelWidth];
    std::memcpy(halves, source, sizeof(halves));
    for (int i = 0; i < kPanelWidth; ++i) bits[i] = static_cast<uint32_t>(halves[i]) << 16;
  } else {
    for (int i = 0; i < kPanelWidth; ++i) {
      const uint32_t exponent = static_cast<uint32_t>(source[i]) << 23;
      bits[i] = exponent == 0 ? 0x00400000u : exponent;  // 2^-127 is a subnormal
    }
  }
  std::memcpy(scales, bits, sizeof(bits));
}

// Rows of codes of one group of a panel.
struct CodeRows {
  const uint8_t* codes;
  int64_t num_rows;
  const float* scales;  // [kPanelWidth]
  int64_t ahead;        // how far ahead to fetch, bytes
};

template <typename Codes>
constexpr int64_t kCodeRowBytes = Codes::kCode == WeightCode::kFp8 ? kPanelWidth : kPanelWidth / 2;

template <typename Codes, typename Weights>
inline void dequantise_rows(CodeRows rows, typename Weights::Element* target) {
  const uint8_t* row = rows.codes;
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    __builtin_prefetch(row + rows.ahead);
    for (int piece = 0; piece < kPieces; ++piece) {
      PanelFloats pair[2];
      dequantise_pair<Codes>(row, piece, rows.scales, pair);
      store_pair<Codes>(Weights{}, target, piece, pair);
    }
    row += kCodeRowBytes<Codes>;
    target += kPanelWidth;
  }
}

#if defined(__AVX512F__)
// The processor's own conversion to bfloat16, two instructions a row for ten. It takes subnormals for zeros, so groups
// with such products do without it.
inline bool has_bfloat16_conversion() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

inline bool gives_subnormals(const float* scales) {
  const __m512 smallest = _mm512_set1_ps(0x1p-100f);  // the smallest code is 2^-9, prescaled 2^-17
  for (int half = 0; half < kPanelWidth; half += 16) {
    const __m512 magnitude = _mm512_abs_ps(_mm512_loadu_ps(scales + half));
    const __mmask16 small = _mm512_cmp_ps_mask(magnitude, smallest, _CMP_LT_OQ);
    if (_mm512_mask_cmp_ps_mask(small, magnitude, _mm512_setzero_ps(), _CMP_NEQ_OQ) != 0) return true;
  }
  return false;
}

// Output i of a pair of vectors is element kInterleave[i] of both one behind the other.
alignas(64) constexpr uint16_t kInterleave[kPanelWidth] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

template <typename Codes>
__attribute__((target("avx512bf16"))) inline void convert_rows(CodeRows rows, uint16_t* target) {
  const __m512i interleave = _mm512_load_si512(kInterleave);
  const uint8_t* row = rows.codes;
#pragma GCC unroll 4
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    __builtin_prefetch(row + rows.ahead);
    PanelFloats pair[2];
    dequantise_pair<Codes>(row, 0, rows.scales, pair);
    const auto halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(pair[1], pair[0]));
    _mm512_storeu_si512(target, _mm512_permutexvar_epi16(interleave, halves));
    row += kCodeRowBytes<Codes>;
    target += kPanelWidth;
  }
}

template <typename Codes>
inline void dequantise_rows_of(BFloat16Weights, const CodeRows& rows, uint16_t* target) {
  if (!Codes::kIsExact && has_bfloat16_conversion() && !gives_subnormals(rows.scales)) {
    return convert_rows<Codes>(rows, target);
  }
  dequantise_rows<Codes, BFloat16Weights>(rows, target);
}
#endif

template <typename Codes, typename Weights>
inline void dequantise_rows_of(Weights, const CodeRows& rows, typename Weights::Element* target) {
  dequantise_rows<Codes, Weights>(rows, target);
}

struct PanelBlock {
  int64_t first_k, num_k;
  int64_t prefetch_bytes;  // how far ahead of the codes to fetch
};

// plain: [num_k, kPanelWidth] in the element type of Weights. panel: its first byte.
template <typename Codes, typename Weights>
void dequantise_block(const PackedWeightView& weight, const uint8_t* panel, const PanelBlock& block, void* plain) {
  constexpr int64_t kRowBytes = kCodeRowBytes<Codes>;
  const int64_t group_size = weight.form.group_size;
  const int64_t scale_bytes = kPanelWidth * weight.form.scale_bytes();
  auto* target = static_cast<typename Weights::Element*>(plain);
  alignas(64) float scales[kPanelWidth];
  const int64_t end = block.first_k + block.num_k;
  for (int64_t k = block.first_k; k < end;) {
    const int64_t group = k / group_size;
    const uint8_t* start = panel + group * (scale_bytes + group_size * kRowBytes);
    const int64_t group_end = (group + 1) * group_size;
    const int64_t num_rows = (group_end < end ? group_end : end) - k;
    widen_scales(weight.form.scale, start, scales);
    for (float& scale : scales) scale *= Codes::kPrescale;
    const uint8_t* codes = start + scale_bytes + (k - group * group_size) * kRowBytes;
    dequantise_rows_of<Codes>(Weights{}, {codes, num_rows, scales, block.prefetch_bytes}, target);
    k += num_rows;
    target += num_rows * kPanelWidth;
  }
}

using Dequantise = void (*)(const PackedWeightView&, const uint8_t*, const PanelBlock&, void*);

template <typename Codes>
Dequantise dequantise_into(DType dtype) {
  if (dtype == DType::kBFloat16) return dequantise_block<Codes, BFloat16Weights>;
  if (dtype == DType::kFloat16) return dequantise_block<Codes, Float16Weights>;
  return dequantise_block<Codes, Float32Weights>;
}

inline Dequantise choose_dequantise(const PackedWeightView& weight) {
  if (weight.form.code == WeightCode::kInt4) return dequantise_into<Int4Codes>(weight.dtype);
  if (weight.form.code == WeightCode::kFp4) return dequantise_into<Fp4Codes>(weight.dtype);
  return dequantise_into<Fp8Codes>(weight.dtype);
}

}  // namespace eagle31rt::E31_ISA
