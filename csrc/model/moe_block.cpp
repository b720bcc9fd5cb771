#include "model/moe_block.h"

#include "ops/ops.h"

namespace eagle31rt {

namespace {

// The rows of a step by expert, as moe_route leaves them.
struct Routing {
  int32_t *expert_begin, *expert_ids, *sorted_rows, *places;
  float* weights;
};

Routing routing_in(MoeScratch& scratch, const MoeConfig& config, int64_t num_assignments) {
  // A scratch array is raw memory of 4-byte elements.
  auto* begin = static_cast<int32_t*>(static_cast<void*>(scratch.assignments.data()));
  int32_t* ids = begin + config.num_experts + 1;
  return {begin, ids, ids + num_assignments, ids + 2 * num_assignments, scratch.expert_weights.data()};
}

void route(const MoeConfig& config, const MoeWeights& weights, const float* normed, int64_t num_rows,
           const Routing& routing, float* logits, ExecutionContext& context) {
  const PackedWeightView router = weights.router.view();
  context.ops.linear({.input = normed,
                      .weight = router,
                      .bias = weights.router_bias.data(),
                      .residual = nullptr,
                      .output = logits,
                      .num_rows = num_rows,
                      .input_stride = router.in_features,
                      .output_stride = router.out_features},
                     context);
  context.ops.moe_route({.logits = logits,
                         .correction = weights.correction.data(),
                         .expert_ids = routing.expert_ids,
                         .weights = routing.weights,
                         .expert_begin = routing.expert_begin,
                         .sorted_rows = routing.sorted_rows,
                         .places = routing.places,
                         .num_rows = num_rows,
                         .num_experts = config.num_experts,
                         .top_k = config.num_experts_per_token,
                         .num_groups = config.num_groups,
                         .num_groups_chosen = config.num_groups_chosen,
                         .scoring = config.scoring,
                         .normalise = config.normalise_top_k,
                         .scale = config.routed_scaling_factor},
                        context);
}

void activate(const MoeConfig& config, const MoeScratch& scratch, int64_t num_assignments, ExecutionContext& context) {
  SiluMulParams params{};
  params.input = scratch.gate_up.data();
  params.output = scratch.activated.data();
  params.num_rows = num_assignments;
  params.intermediate_size = config.moe_intermediate_size;
  if (config.clamped_swiglu) {
    params.activation = Activation::kClampedSwiglu;
    params.alpha = config.clamped_swiglu->alpha;
    params.limit = config.clamped_swiglu->limit;
  }
  context.ops.silu_mul(params, context);
}

ExpertLinearParams of_experts(const std::vector<PackedWeight>& experts, const Vector& bias, const Routing& routing,
                              int64_t num_assignments) {
  ExpertLinearParams params{};
  params.weight = experts.front().view();
  params.expert_stride = experts.front().num_bytes();
  params.bias = bias.data();
  params.expert_begin = routing.expert_begin;
  params.num_places = num_assignments;
  params.num_experts = static_cast<int32_t>(experts.size());
  return params;
}

void run_experts(const MoeConfig& config, const MoeWeights& weights, const float* normed, int64_t num_assignments,
                 const Routing& routing, MoeScratch& scratch, ExecutionContext& context) {
  ExpertLinearParams gate_up = of_experts(weights.gate_up, weights.gate_up_bias, routing, num_assignments);
  gate_up.input = normed;
  gate_up.input_rows = routing.sorted_rows;
  gate_up.output = scratch.gate_up.data();
  context.ops.expert_linear(gate_up, context);
  activate(config, scratch, num_assignments, context);
  ExpertLinearParams down = of_experts(weights.down, weights.down_bias, routing, num_assignments);
  down.input = scratch.activated.data();
  down.output = scratch.expert_output.data();
  context.ops.expert_linear(down, context);
}

}  // namespace

void MoeScratch::reserve(const MoeConfig& config, int64_t hidden_size, int64_t num_rows) {
  const int64_t num_assignments = num_rows * config.num_experts_per_token;
  router_logits.get(num_rows * config.num_experts);
  expert_weights.get(num_assignments);
  assignments.get(config.num_experts + 1 + 3 * num_assignments);
  gate_up.get(2 * num_assignments * config.moe_intermediate_size);
  activated.get(num_assignments * config.moe_intermediate_size);
  expert_output.get(num_assignments * hidden_size);
}

void run_moe_block(const MoeConfig& config, const MoeWeights& weights, const float* normed, int64_t num_rows,
                   float* residual, MoeScratch& scratch, ExecutionContext& context) {
  const int64_t hidden_size = weights.router.view().in_features;
  const int64_t num_assignments = num_rows * config.num_experts_per_token;
  scratch.reserve(config, hidden_size, num_rows);
  const Routing routing = routing_in(scratch, config, num_assignments);
  const ScopedTimer timer(context.profiler, Work::kLinear);
  route(config, weights, normed, num_rows, routing, scratch.router_logits.data(), context);
  run_experts(config, weights, normed, num_assignments, routing, scratch, context);
  context.ops.moe_combine({.expert_output = scratch.expert_output.data(),
                           .weights = routing.weights,
                           .places = routing.places,
                           .base = residual,
                           .output = residual,
                           .num_rows = num_rows,
                           .hidden_size = hidden_size,
                           .top_k = config.num_experts_per_token},
                          context);
}

}  // namespace eagle31rt
