// output[r][i] = silu(input[r][i]) * input[r][intermediate_size + i], silu(x) = x / (1 + exp(-x)).
#pragma once

#include <cstdint>

namespace eagle31rt {

struct SiluMulParams {
  const float* input;  // [num_rows, 2 * intermediate_size]: gate half, up half
  float* output;       // [num_rows, intermediate_size]
  int64_t num_rows;
  int64_t intermediate_size;
};

}  // namespace eagle31rt
