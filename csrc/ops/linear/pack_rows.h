// Lays a block of input rows side by side for the panel kernel.
#pragma once

#include <cstdint>
#include <cstring>

namespace eagle31rt::E31_ISA {

typedef float Quad __attribute__((vector_size(16)));

// Four rows at a time: a 4 x 4 transpose in registers, about a quarter of a cycle an element.
inline int64_t pack_four_rows(const float* input, int64_t stride, int64_t num_rows, int64_t num_k, float* packed) {
  int64_t k = 0;
  for (; k + 4 <= num_k; k += 4) {
    Quad q[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&q[i], input + i * stride + k, sizeof(Quad));
    const Quad low01 = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5);
    const Quad low23 = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
    const Quad high01 = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
    const Quad high23 = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
    const Quad column[4] = {
        __builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
        __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (int i = 0; i < 4; ++i) std::memcpy(packed + (k + i) * num_rows, &column[i], sizeof(Quad));
  }
  return k;
}

// packed[k, r] = input[r * stride + k].
inline void pack_rows(const float* input, int64_t stride, int64_t num_rows, int64_t num_k, float* packed) {
  int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) {
    int64_t k = pack_four_rows(input + r * stride, stride, num_rows, num_k, packed + r);
    for (; k < num_k; ++k) {
      for (int i = 0; i < 4; ++i) packed[k * num_rows + r + i] = input[(r + i) * stride + k];
    }
  }
  for (; r < num_rows; ++r) {
    for (int64_t k = 0; k < num_k; ++k) packed[k * num_rows + r] = input[r * stride + k];
  }
}

}  // namespace eagle31rt::E31_ISA
