// Root-mean-square norm of each row, with an optional residual add before it:
//
//   residual[r] += delta[r]                        (only if delta is given)
//   output[r][i] = residual[r][i] / sqrt(mean(residual[r]^2) + epsilon) * weight[i]
//
// A row may hold several groups of hidden_size elements side by side (the heads of a query), each normed by itself with
// the same weight; then residual[r], delta[r] and output[r] above stand for a group.
//
// The sum of squares runs in 16 lanes (element i in lane i % 16, ascending, fused) that are added in a fixed tree.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct RmsNormParams {
  float* residual;      // [num_rows, residual_stride]; written only if delta is given
  const float* delta;   // [num_rows, num_groups * hidden_size] or null
  const float* weight;  // [hidden_size]
  float* output;        // [num_rows, output_stride]; may be the same memory as residual if delta is null
  int64_t num_rows;
  int64_t hidden_size;
  int64_t residual_stride;  // elements between rows
  int64_t output_stride;    // elements between rows (2H when a draft writes its half of concat([e, h]))
  float epsilon;
  int32_t num_groups = 1;
};

}  // namespace eagle31rt
