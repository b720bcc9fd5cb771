#include "model/transformer_layer.h"

#include <cmath>

#include "ops/ops.h"

namespace eagle31rt {

namespace {

void run_linear(const float* input, const PackedWeight& weight, const Vector& bias, const float* residual,
                float* output, int64_t num_rows, ExecutionContext& context) {
  const ScopedTimer timer(context.profiler, Work::kLinear);
  const PackedWeightView view = weight.view();
  context.ops.linear({.input = input,
                      .weight = view,
                      .bias = bias.data(),
                      .residual = residual,
                      .output = output,
                      .num_rows = num_rows,
                      .input_stride = view.in_features,
                      .output_stride = view.out_features},
                     context);
}

// Every head of rows that hold num_heads of them, in place.
void norm_heads(const Vector& weight, float* heads, int32_t num_heads, int64_t num_rows, int64_t row_stride,
                float epsilon, ExecutionContext& context) {
  if (weight.empty()) return;
  RmsNormParams params{};
  params.residual = heads;
  params.weight = weight.data();
  params.output = heads;
  params.num_rows = num_rows;
  params.hidden_size = static_cast<int64_t>(weight.size());
  params.residual_stride = params.output_stride = row_stride;
  params.epsilon = epsilon;
  params.num_groups = num_heads;
  context.ops.rms_norm(params, context);
}

// batch: without trees, or trees alone.
void attend(const LayerShape& shape, const LayerWeights& weights, const BatchView& batch, const KvCacheView& cache,
            const float* query, float* attended, ExecutionContext& context) {
  if (batch.num_requests == 0) return;
  context.ops.paged_attention(
      {.query = query,
       .output = attended,
       .cache = cache,
       .page_table = batch.page_table,
       .row_begin = batch.row_begin,
       .kv_begin = batch.kv_begin,
       .kv_length = batch.kv_length,
       .ancestor_mask = batch.num_trees > 0 ? batch.ancestor_mask : nullptr,
       .num_requests = batch.num_requests,
       .num_rows = batch.num_rows,
       .query_stride = int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim,
       .page_table_stride = batch.page_table_stride,
       .mask_words = batch.mask_words,
       .num_heads = shape.num_heads,
       .scale = shape.attention_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
       .sinks = weights.sinks.data(),
       .sliding_window = shape.sliding_window},
      context);
}

void run_attention(const LayerShape& shape, const LayerWeights& weights, const BatchView& batch, const RopeRows& rope,
                   const KvCacheView& cache, float* qkv, float* attended, ExecutionContext& context) {
  const int64_t row_stride = int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim;
  float* key = qkv + int64_t{shape.num_heads} * shape.head_dim;
  float* value = key + int64_t{shape.num_kv_heads} * shape.head_dim;
  norm_heads(weights.query_norm, qkv, shape.num_heads, batch.num_rows, row_stride, shape.rms_norm_eps, context);
  norm_heads(weights.key_norm, key, shape.num_kv_heads, batch.num_rows, row_stride, shape.rms_norm_eps, context);
  context.ops.rope({.query = qkv,
                    .key = key,
                    .cosine = rope.cosine,
                    .sine = rope.sine,
                    .num_rows = batch.num_rows,
                    .row_stride = row_stride,
                    .num_heads = shape.num_heads,
                    .num_kv_heads = shape.num_kv_heads,
                    .head_dim = shape.head_dim,
                    .rotary_dim = shape.rotary_dim,
                    .interleaved = shape.interleaved_rope},
                   context);
  const ScopedTimer timer(context.profiler, Work::kAttention);
  context.ops.kv_append({.key = key,
                         .value = value,
                         .slots = batch.slots,
                         .cache = cache,
                         .num_rows = batch.num_rows,
                         .row_stride = row_stride},
                        context);
  attend(shape, weights, batch.without_trees(), cache, qkv, attended, context);
  const BatchView trees = batch.trees();
  const int64_t first_row = batch.num_rows - trees.num_rows;
  attend(shape, weights, trees, cache, qkv + first_row * row_stride,
         attended + first_row * shape.num_heads * shape.head_dim, context);
}

// residual += input @ weight + bias, normed first if output_norm is there.
void add_projection(const float* input, const PackedWeight& weight, const Vector& bias, const Vector& output_norm,
                    float epsilon, int64_t num_rows, float* residual, LayerScratch& scratch,
                    ExecutionContext& context) {
  if (output_norm.empty()) return run_linear(input, weight, bias, residual, residual, num_rows, context);
  const int64_t size = static_cast<int64_t>(output_norm.size());
  float* projected = scratch.projected.get(num_rows * size);
  run_linear(input, weight, bias, nullptr, projected, num_rows, context);
  run_rms_norm(projected, output_norm, epsilon, num_rows, projected, size, context);
  // Of this operator only its sum is wanted; the norm of it goes to scratch.normed, which is free here.
  RmsNormParams params{};
  params.residual = residual;
  params.delta = projected;
  params.weight = output_norm.data();
  params.output = scratch.normed.data();
  params.num_rows = num_rows;
  params.hidden_size = params.residual_stride = params.output_stride = size;
  params.epsilon = epsilon;
  context.ops.rms_norm(params, context);
}

void run_mlp(const LayerShape& shape, const LayerWeights& weights, const float* normed, int64_t num_rows,
             float* residual, LayerScratch& scratch, ExecutionContext& context) {
  float* gate_up = scratch.gate_up.data();
  float* activated = scratch.activated.data();
  run_linear(normed, weights.gate_up, weights.gate_up_bias, nullptr, gate_up, num_rows, context);
  context.ops.silu_mul({.input = gate_up,
                        .output = activated,
                        .num_rows = num_rows,
                        .intermediate_size = weights.down.view().in_features,
                        .activation = shape.activation},
                       context);
  add_projection(activated, weights.down, weights.down_bias, weights.mlp_output_norm, shape.rms_norm_eps, num_rows,
                 residual, scratch, context);
}

}  // namespace

KvShape layers_kv_shape(const LayerShape& shape, int32_t num_layers, DType dtype) {
  KvShape result{num_layers, shape.num_kv_heads, shape.head_dim, dtype};
  if (!shape.mla) return result;
  result.latent_dim = shape.mla->kv_lora_rank;
  result.rope_dim = shape.mla->qk_rope_head_dim;
  return result;
}

void LayerScratch::reserve(const LayerShape& shape, int64_t num_rows) {
  if (shape.mla) {
    mla.reserve(*shape.mla, shape.num_heads, num_rows);
    attended.get(num_rows * shape.num_heads * shape.mla->v_head_dim);
  } else {
    qkv.get(num_rows * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
    attended.get(num_rows * shape.num_heads * shape.head_dim);
  }
  normed.get(num_rows * shape.hidden_size);
  if (shape.sandwich_norms) projected.get(num_rows * shape.hidden_size);
  gate_up.get(num_rows * 2 * shape.widest_mlp());
  activated.get(num_rows * shape.widest_mlp());
  if (shape.moe) moe.reserve(*shape.moe, shape.hidden_size, num_rows);
}

void run_rms_norm(const float* input, const Vector& weight, float epsilon, int64_t num_rows, float* output,
                  int64_t output_stride, ExecutionContext& context) {
  const int64_t size = static_cast<int64_t>(weight.size());
  // Without a delta the operator only reads `residual`.
  context.ops.rms_norm({.residual = const_cast<float*>(input),
                        .delta = nullptr,
                        .weight = weight.data(),
                        .output = output,
                        .num_rows = num_rows,
                        .hidden_size = size,
                        .residual_stride = size,
                        .output_stride = output_stride,
                        .epsilon = epsilon},
                       context);
}

void run_transformer_layer(const LayerShape& shape, const LayerWeights& weights, const BatchView& batch,
                           const RopeRows& rope, const LayerCache& cache, const float* attention_input, float* residual,
                           LayerScratch& scratch, ExecutionContext& context) {
  const int64_t rows = batch.num_rows;
  scratch.reserve(shape, rows);
  float* qkv = scratch.qkv.data();
  float* attended = scratch.attended.data();
  if (shape.mla) {
    run_mla_block(*shape.mla, shape.num_heads, shape.interleaved_rope, weights, batch, rope,
                  std::get<LatentCacheView>(cache), attention_input, attended, scratch.mla, context);
  } else {
    run_linear(attention_input, weights.qkv, weights.qkv_bias, nullptr, qkv, rows, context);
    run_attention(shape, weights, batch, rope, std::get<KvCacheView>(cache), qkv, attended, context);
  }
  add_projection(attended, weights.output, weights.output_bias, weights.attention_output_norm, shape.rms_norm_eps, rows,
                 residual, scratch, context);

  float* normed = scratch.normed.data();
  run_rms_norm(residual, weights.post_attention_norm, shape.rms_norm_eps, rows, normed, shape.hidden_size, context);
  if (!weights.gate_up.empty()) run_mlp(shape, weights, normed, rows, residual, scratch, context);
  if (weights.moe) run_moe_block(*shape.moe, *weights.moe, normed, rows, residual, scratch.moe, context);
}

}  // namespace eagle31rt
