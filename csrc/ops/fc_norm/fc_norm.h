// The entry of an EAGLE-3 / EAGLE-3.1 draft: captured target states -> fused feature (eagle31_spec 1.2, 2.1).
//
//   kNone      output = concat(chunks) @ fc^T
//   kPerChunk  output = concat(rms_norm(chunk_i, norm_weight_i)) @ fc^T      EAGLE-3.1, config key fc_norm
//   kWhole     output = rms_norm(concat(chunks), norm_weight) @ fc^T         config key norm_before_fc
//
// One pass over the activations: a row is normalised into a small buffer and multiplied at once; the normed concat
// never goes to memory. On the CPU, and on CUDA with float32 weights, the bits equal rms_norm on each chunk followed by
// linear. With 16-bit weights CUDA multiplies by norm_weight on the way into the matrix instruction and scales the
// finished sum of a chunk (linear/mma_kernel.cuh).
#pragma once

#include <cstdint>

#include "ops/linear/packed_weight.h"

namespace eagle31rt {

enum class FcNormMode { kNone, kPerChunk, kWhole };

struct FcNormParams {
  const float* captured;     // [num_rows, num_chunks * chunk_size], ascending layer
  const float* norm_weight;  // [num_chunks * chunk_size], null for kNone
  PackedWeightView weight;   // [hidden_size, num_chunks * chunk_size], packed, not quantised
  const float* bias;         // [hidden_size] or null
  float* output;             // [num_rows, hidden_size]
  int64_t num_rows;
  int64_t chunk_size;  // hidden size of the target
  int32_t num_chunks;  // captured states, 1..8
  FcNormMode mode;
  float epsilon;
};

}  // namespace eagle31rt
