// The norm of one row, shared by rms_norm and fc_norm so that their bits are equal by construction.
//
// The sum of squares runs in 16 lanes (element i in lane i % 16, ascending, fused) that reduce_add joins in its tree.
#pragma once

#include <cstdint>

#include "device/cpu/simd.h"

namespace eagle31rt::E31_ISA {

// 1 / sqrt(mean(x^2) + epsilon) over x[0 .. n - 1].
inline float inverse_rms(const float* x, int64_t n, float epsilon) {
  Lanes sum = zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes value = load(x + i);
    sum = multiply_add(value, value, sum);
  }
  if (i < n) {
    const Lanes value = load_partial(x + i, static_cast<int>(n - i));
    sum = multiply_add(value, value, sum);
  }
  return 1.0f / __builtin_sqrtf(reduce_add(sum) / static_cast<float>(n) + epsilon);
}

// y[i] = (x[i] * inverse) * weight[i]; y may be x.
inline void scale_row(const float* x, float inverse, const float* weight, float* y, int64_t n) {
  const Lanes scale = broadcast(inverse);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_partial(y + i, mul(mul(load_partial(x + i, rest), scale), load_partial(weight + i, rest)), rest);
  }
}

}  // namespace eagle31rt::E31_ISA
