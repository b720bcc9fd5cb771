// The quantised forms of a linear weight: a code of 4 or 8 bits for each element, and a scale for each group of
// group_size consecutive input features of one output (the last group may be cut).
//
//   element(o, k) = round_to_dtype(float32(code_value(o, k) * scale(o, k / group_size)))
//
// which is what a loader that dequantises stores, so that keeping the codes changes no bit. Scales that a checkpoint
// shares among outputs (FP8 in blocks of 128 x 128) are repeated for each output: 4 bytes for 128 of them, 3 %, and
// then blocks may end anywhere, as where gate and up meet in one weight.
#pragma once

#include <bit>
#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"
#include "eagle31rt/dtype.h"

namespace eagle31rt {

enum class WeightCode : uint8_t {
  kNone,  // not quantised
  kFp8,   // E4M3 of OCP OFP8: bias 7, no infinity, NaN in 0x7f and 0xff
  kInt4,  // value + 8
  kFp4,   // E2M1 of OCP MX: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and 8 added for the negative
};

enum class ScaleType : uint8_t {
  kFloat32,
  kBFloat16,
  kE8M0,  // 2^(byte - 127); 255 is NaN
};

// MXFP4 is {kFp4, kE8M0, 32}; FP8 has kFloat32, int4 kFloat32 or kBFloat16. Others are refused by PackedWeight.
struct WeightForm {
  WeightCode code = WeightCode::kNone;
  ScaleType scale = ScaleType::kFloat32;
  int32_t group_size = 0;

  bool operator==(const WeightForm&) const = default;
  E31_HOST_DEVICE bool is_quantised() const { return code != WeightCode::kNone; }
  E31_HOST_DEVICE int64_t code_bits() const { return code == WeightCode::kFp8 ? 8 : 4; }
  E31_HOST_DEVICE int64_t scale_bytes() const {
    return scale == ScaleType::kFloat32 ? 4 : scale == ScaleType::kBFloat16 ? 2 : 1;
  }
  E31_HOST_DEVICE int64_t num_groups(int64_t in_features) const { return (in_features + group_size - 1) / group_size; }
};

// The bits of a small float as those of a float32 with the same exponent field, times the difference of the biases:
// exact, and right for its subnormals too.
E31_HOST_DEVICE static inline float code_value(WeightCode code, uint32_t bits) {
  if (code == WeightCode::kInt4) return static_cast<float>(static_cast<int32_t>(bits) - 8);
  if (code == WeightCode::kFp4) return std::bit_cast<float>((bits & 7u) << 22 | (bits & 8u) << 28) * 0x1p126f;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>((bits & 0x80u) << 24 | 0x7fc00000u);
  return std::bit_cast<float>((bits & 0x7fu) << 20 | (bits & 0x80u) << 24) * 0x1p120f;
}

E31_HOST_DEVICE static inline float e8m0_value(uint32_t exponent) {
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23);
}

// source: aligned to scale_bytes().
E31_HOST_DEVICE static inline float read_scale(ScaleType type, const void* source) {
  if (type == ScaleType::kFloat32) return *static_cast<const float*>(source);
  if (type == ScaleType::kBFloat16) return bfloat16_to_float(*static_cast<const uint16_t*>(source));
  return e8m0_value(*static_cast<const uint8_t*>(source));
}

// value as dtype holds it, widened.
E31_HOST_DEVICE static inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::kFloat32) return value;
  return dtype == DType::kBFloat16 ? bfloat16_to_float(float_to_bfloat16(value))
                                   : float16_to_float(float_to_float16(value));
}

}  // namespace eagle31rt
