// The gated activation of an MLP, with gate = input[r][i] and up = input[r][intermediate_size + i]:
//   kSilu           silu(gate) * up, silu(x) = x / (1 + exp(-x))
//   kClampedSwiglu  (min(max(up, -limit), limit) + 1) * g / (1 + exp(-alpha * g)), g = min(gate, limit)
#pragma once

#include <cstdint>

namespace eagle31rt {

enum class Activation : uint8_t { kSilu, kClampedSwiglu };

struct SiluMulParams {
  const float* input;  // [num_rows, 2 * intermediate_size]: gate half, up half
  float* output;       // [num_rows, intermediate_size]
  int64_t num_rows;
  int64_t intermediate_size;
  Activation activation = Activation::kSilu;
  float alpha = 1.0f, limit = 0.0f;  // kClampedSwiglu
};

}  // namespace eagle31rt
