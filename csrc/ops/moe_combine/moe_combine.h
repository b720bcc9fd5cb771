// output[r] = base[r] + weights[r][0] * expert_output[places[r][0]] + weights[r][1] * ..., one fused multiply-add after
// the other from the first expert on, base being added last: a fixed order, so that a row's bits do not depend on where
// its assignments stand.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct MoeCombineParams {
  const float* expert_output;  // [num_places, hidden_size]
  const float* weights;        // [num_rows, top_k]
  const int32_t* places;       // [num_rows, top_k]
  const float* base;           // [num_rows, hidden_size] or null; may be the same memory as output
  float* output;               // [num_rows, hidden_size]
  int64_t num_rows;
  int64_t hidden_size;
  int32_t top_k;
};

}  // namespace eagle31rt
