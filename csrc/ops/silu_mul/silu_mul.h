// The gated activation of an MLP, with gate = input[r][i] and up = input[r][intermediate_size + i]:
//   kSilu           silu(gate) * up, silu(x) = x / (1 + exp(-x))
//   kGeluTanh       g / (1 + exp(-2 u)) * up, u = sqrt(2 / pi) * (g + 0.044715 g^3): gelu's tanh form, g = gate
//   kClampedSwiglu  (min(max(up, -limit), limit) + 1) * g / (1 + exp(-alpha * g)), g = min(gate, limit)
#pragma once

#include <cstdint>

namespace eagle31rt {

enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu };

// 2 sqrt(2 / pi) and 0.044715 times that, of kGeluTanh.
inline constexpr float kGeluLinear = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.07135481627260025f;

struct SiluMulParams {
  const float* input;  // [num_rows, 2 * intermediate_size]: gate half, up half
  float* output;       // [num_rows, intermediate_size]
  int64_t num_rows;
  int64_t intermediate_size;
  Activation activation = Activation::kSilu;
  float alpha = 1.0f, limit = 0.0f;  // kClampedSwiglu
};

}  // namespace eagle31rt
