// Rotary position embedding of query and key heads, in place. Only the first rotary_dim elements of a head rotate.
//
// The angles of a row come as cosine and sine of its position (one formula for prefill, verification and drafting;
// model/rope_angles.h), already scaled by the attention factor of yarn.
//   half-split (neox):   pairs (i, i + rotary_dim / 2)
//   interleaved (gpt-j): pairs (2i, 2i + 1)
//   x' = x * cos - y * sin;  y' = y * cos + x * sin        as fma(x, cos, -(y * sin)) and fma(y, cos, x * sin)
#pragma once

#include <cstdint>

namespace eagle31rt {

struct RopeParams {
  float* query;         // [num_rows, row_stride]: num_heads heads of head_dim
  float* key;           // [num_rows, row_stride]: num_kv_heads heads of head_dim
  const float* cosine;  // [num_rows, rotary_dim / 2]
  const float* sine;    // [num_rows, rotary_dim / 2]
  int64_t num_rows;
  int64_t row_stride;  // elements between rows of query and of key (they share one fused qkv buffer)
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;  // even, at most head_dim
  bool interleaved;
};

}  // namespace eagle31rt
