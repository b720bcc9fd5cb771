#include "model/mla_block.h"

#include "ops/ops.h"

namespace eagle31rt {
namespace {

struct Strided {
  float* data;
  int64_t stride;
};

void multiply(const float* input, int64_t input_stride, const PackedWeight& weight, const Strided& output,
              int64_t num_rows, ExecutionContext& context) {
  const ScopedTimer timer(context.profiler, Work::kLinear);
  context.ops.linear({.input = input,
                      .weight = weight.view(),
                      .bias = nullptr,
                      .residual = nullptr,
                      .output = output.data,
                      .num_rows = num_rows,
                      .input_stride = input_stride,
                      .output_stride = output.stride},
                     context);
}

void norm_in_place(const Strided& rows, const Vector& weight, float epsilon, int64_t num_rows,
                   ExecutionContext& context) {
  context.ops.rms_norm({.residual = rows.data,
                        .delta = nullptr,
                        .weight = weight.data(),
                        .output = rows.data,
                        .num_rows = num_rows,
                        .hidden_size = static_cast<int64_t>(weight.size()),
                        .residual_stride = rows.stride,
                        .output_stride = rows.stride,
                        .epsilon = epsilon},
                       context);
}

// The last rope_dim of every head: to the operator, heads that begin there.
void rotate(const Strided& first, int32_t num_heads, int32_t head_dim, int32_t rope_dim, bool interleaved,
            const RopeRows& rope, int64_t num_rows, ExecutionContext& context) {
  context.ops.rope({.query = first.data,
                    .key = nullptr,
                    .cosine = rope.cosine,
                    .sine = rope.sine,
                    .num_rows = num_rows,
                    .row_stride = first.stride,
                    .num_heads = num_heads,
                    .num_kv_heads = 0,
                    .head_dim = head_dim,
                    .rotary_dim = rope_dim,
                    .interleaved = interleaved},
                   context);
}

// batch: without trees, or trees alone.
void attend(const MlaConfig& config, int32_t num_heads, const BatchView& batch, const LatentCacheView& cache,
            const float* query, float* latents, ExecutionContext& context) {
  if (batch.num_requests == 0) return;
  context.ops.mla_attention({.query = query,
                             .output = latents,
                             .cache = cache,
                             .page_table = batch.page_table,
                             .row_begin = batch.row_begin,
                             .kv_begin = batch.kv_begin,
                             .kv_length = batch.kv_length,
                             .ancestor_mask = batch.num_trees > 0 ? batch.ancestor_mask : nullptr,
                             .num_requests = batch.num_requests,
                             .num_rows = batch.num_rows,
                             .query_stride = int64_t{num_heads} * config.entry_dim(),
                             .page_table_stride = batch.page_table_stride,
                             .mask_words = batch.mask_words,
                             .num_heads = num_heads,
                             .scale = config.scale},
                            context);
}

// query [num_rows, num_heads, query_dim], rotated -> absorbed [num_rows, num_heads, entry_dim].
void absorb_keys(const MlaConfig& config, int32_t num_heads, const MlaWeights& weights, const float* query,
                 float* absorbed, int64_t num_rows, ExecutionContext& context) {
  const int64_t query_dim = config.query_dim(), entry_dim = config.entry_dim();
  for (int64_t head = 0; head < num_heads; ++head) {
    multiply(query + head * query_dim, num_heads * query_dim, weights.key_up[static_cast<size_t>(head)],
             {absorbed + head * entry_dim, num_heads * entry_dim}, num_rows, context);
  }
  context.ops.gather_rows({.input = query + config.qk_nope_head_dim,
                           .indices = nullptr,
                           .output = absorbed + config.kv_lora_rank,
                           .num_rows = num_rows * num_heads,
                           .num_columns = config.qk_rope_head_dim,
                           .input_stride = query_dim,
                           .output_stride = entry_dim},
                          context);
}

}  // namespace

void MlaScratch::reserve(const MlaConfig& config, int32_t num_heads, int64_t num_rows) {
  compressed.get(num_rows * (config.q_lora_rank + config.entry_dim()));
  query.get(num_rows * num_heads * config.query_dim());
  absorbed.get(num_rows * num_heads * config.entry_dim());
  latents.get(num_rows * num_heads * config.kv_lora_rank);
}

void run_mla_block(const MlaConfig& config, int32_t num_heads, bool interleaved_rope, const LayerWeights& weights,
                   const BatchView& batch, const RopeRows& rope, const LatentCacheView& cache, const float* input,
                   float* attended, MlaScratch& scratch, ExecutionContext& context) {
  const int64_t rows = batch.num_rows;
  const int64_t input_size = weights.qkv.view().in_features;
  const Strided compressed = {scratch.compressed.data(), config.q_lora_rank + config.entry_dim()};
  const Strided entry = {compressed.data + config.q_lora_rank, compressed.stride};
  const Strided query = {scratch.query.data(), int64_t{num_heads} * config.query_dim()};

  multiply(input, input_size, weights.qkv, compressed, rows, context);
  if (config.q_lora_rank > 0) {
    norm_in_place(compressed, weights.mla->query_norm, config.norm_epsilon, rows, context);
    multiply(compressed.data, compressed.stride, weights.mla->query_up, query, rows, context);
  } else {
    multiply(input, input_size, weights.mla->query_up, query, rows, context);
  }
  norm_in_place(entry, weights.mla->latent_norm, config.norm_epsilon, rows, context);
  rotate({query.data + config.qk_nope_head_dim, query.stride}, num_heads, config.query_dim(), config.qk_rope_head_dim,
         interleaved_rope, rope, rows, context);
  rotate({entry.data + config.kv_lora_rank, entry.stride}, 1, config.qk_rope_head_dim, config.qk_rope_head_dim,
         interleaved_rope, rope, rows, context);
  absorb_keys(config, num_heads, *weights.mla, query.data, scratch.absorbed.data(), rows, context);
  {
    const ScopedTimer timer(context.profiler, Work::kAttention);
    context.ops.mla_append(
        {.entries = entry.data, .slots = batch.slots, .cache = cache, .num_rows = rows, .row_stride = entry.stride},
        context);
    const BatchView trees = batch.trees();
    const int64_t first = (rows - trees.num_rows) * num_heads;
    attend(config, num_heads, batch.without_trees(), cache, scratch.absorbed.data(), scratch.latents.data(), context);
    attend(config, num_heads, trees, cache, scratch.absorbed.data() + first * config.entry_dim(),
           scratch.latents.data() + first * config.kv_lora_rank, context);
  }
  const int64_t latent = config.kv_lora_rank, value = config.v_head_dim;
  for (int64_t head = 0; head < num_heads; ++head) {
    multiply(scratch.latents.data() + head * latent, num_heads * latent,
             weights.mla->value_up[static_cast<size_t>(head)], {attended + head * value, num_heads * value}, rows,
             context);
  }
}

}  // namespace eagle31rt
