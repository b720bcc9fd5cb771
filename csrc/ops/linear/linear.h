// output[r] = input[r] @ weight^T (+ bias) (+ residual[r]), float32 accumulation.
//
// Arithmetic of one output: acc = 0; for k = 0 .. K-1: acc = fma(input[r][k], weight[o][k], acc); then + bias, then
// + residual. The same for every number of rows. (The generic variant on a processor without fused multiply-add rounds
// the product: fma(a, b, c) is a * b + c there.) CUDA does the same with float32 weights; with 16-bit weights it rounds
// the input to their type and adds by matrix instructions, in the order that mma_kernel.cuh states.
//
// A quantised weight gives, bit for bit on every backend, what the weight of its dequantised elements gives
// (weight_form.h): to keep a checkpoint's codes saves memory and reads, and changes no output.
#pragma once

#include <cstdint>

#include "ops/linear/packed_weight.h"

namespace eagle31rt {

struct LinearParams {
  const float* input;       // [num_rows, input_stride], the first in_features of each row are read
  PackedWeightView weight;  // [out_features, in_features], packed
  const float* bias;        // [out_features] or null
  const float* residual;    // [num_rows, output_stride] or null; may be the same memory as output
  float* output;            // [num_rows, output_stride], the first out_features of each row are written
  int64_t num_rows;
  int64_t input_stride;   // elements between rows, at least in_features
  int64_t output_stride;  // elements between rows, at least out_features
};

}  // namespace eagle31rt
