// The MLP of a mixture of experts:
//
//   residual += sum over the chosen experts of weight * down(activation(gate, up))
//
// The rows of a step are batched by expert, and a row's experts are added in ascending order, so that its bits do not
// depend on its company. Shared experts are a plain MLP beside it.
#pragma once

#include <cstdint>

#include "device/execution_context.h"
#include "model/config.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace eagle31rt {

// Activations of one layer, reused by all layers of a model. An assignment is a row and one of its experts.
struct MoeScratch {
  explicit MoeScratch(Device& device)
      : router_logits(device),
        expert_weights(device),
        assignments(device),
        gate_up(device),
        activated(device),
        expert_output(device) {}
  void reserve(const MoeConfig& config, int64_t hidden_size, int64_t num_rows);

  Scratch router_logits;   // [num_rows, num_experts]
  Scratch expert_weights;  // [num_assignments]
  Scratch assignments;     // int32: expert_begin [num_experts + 1], then [num_assignments] three times
  Scratch gate_up;         // [num_assignments, 2 * moe_intermediate]
  Scratch activated;       // [num_assignments, moe_intermediate]
  Scratch expert_output;   // [num_assignments, hidden_size]
};

// normed [num_rows, hidden_size], the norm of residual [num_rows, hidden_size], which is updated in place.
void run_moe_block(const MoeConfig& config, const MoeWeights& weights, const float* normed, int64_t num_rows,
                   float* residual, MoeScratch& scratch, ExecutionContext& context);

}  // namespace eagle31rt
