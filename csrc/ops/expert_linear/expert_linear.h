// The linear layers of a mixture of experts: every expert's own weight times the rows that were routed to it, batched.
//
//   output[place] = input[row of place] @ weight[e]^T (+ bias[e]),  expert_begin[e] <= place < expert_begin[e + 1]
//
// The arithmetic of an output is that of linear (linear/linear.h) with the expert's weight, for every number of rows.
#pragma once

#include <cstdint>

#include "ops/linear/packed_weight.h"

namespace eagle31rt {

struct ExpertLinearParams {
  const float* input;           // [rows, in_features]
  const int32_t* input_rows;    // [num_places] the row of each place, or null: input is in the order of places
  PackedWeightView weight;      // of expert 0, [out_features, in_features]; all are packed alike
  int64_t expert_stride;        // bytes from one expert's weight to the next; a multiple of 64
  const float* bias;            // [num_experts, out_features] or null
  const int32_t* expert_begin;  // [num_experts + 1], as of moe_route
  float* output;                // [num_places, out_features]
  int64_t num_places;           // expert_begin[num_experts]
  int32_t num_experts;
};

// The weight of one expert.
constexpr PackedWeightView expert_weight(const ExpertLinearParams& params, int64_t expert) {
  PackedWeightView weight = params.weight;
  weight.data = static_cast<const char*>(weight.data) + expert * params.expert_stride;
  return weight;
}

}  // namespace eagle31rt
