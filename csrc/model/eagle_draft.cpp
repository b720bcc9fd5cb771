#include "model/eagle_draft.h"

#include <utility>

#include "ops/ops.h"

namespace eagle31rt {

namespace {

LayerShape draft_layer_shape(const DraftConfig& config) {
  return {.hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rotary_dim = config.rope.rotary_dim,
          .interleaved_rope = config.rope.interleaved,
          .rms_norm_eps = config.rms_norm_eps,
          .mla = config.mla};
}

FcNormMode fc_norm_mode(const DraftConfig& config) {
  if (config.fc_norm) return FcNormMode::kPerChunk;
  return config.norm_before_fc ? FcNormMode::kWhole : FcNormMode::kNone;
}

}  // namespace

EagleDraft::EagleDraft(DraftConfig config, DraftWeights weights, const Decoder& target, Device& device,
                       int64_t num_positions)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      embedding_(weights_.embedding.empty() ? target.weights().embedding.view() : weights_.embedding.view()),
      head_(weights_.head.empty() ? target.weights().head_view() : weights_.head.view()),
      shape_(draft_layer_shape(config_)),
      rope_(config_.rope, device, num_positions),
      layer_scratch_(device),
      embedded_(device),
      attention_input_(device),
      normed_(device) {}

void EagleDraft::reserve(int64_t num_rows) {
  embedded_.get(num_rows * config_.hidden_size);
  attention_input_.get(num_rows * 2 * config_.hidden_size);
  if (!config_.norm_output) normed_.get(num_rows * config_.hidden_size);
  layer_scratch_.reserve(shape_, num_rows);
  rope_.reserve(num_rows);
}

void EagleDraft::fuse(const float* captured, int64_t num_rows, float* feature, ExecutionContext& context) const {
  context.ops.fc_norm({.captured = captured,
                       .norm_weight = weights_.fc_norm.data(),
                       .weight = weights_.fc.view(),
                       .bias = weights_.fc_bias.data(),
                       .output = feature,
                       .num_rows = num_rows,
                       .chunk_size = config_.target_hidden_size,
                       .num_chunks = static_cast<int32_t>(config_.capture_layers.size()),
                       .mode = fc_norm_mode(config_),
                       .epsilon = config_.rms_norm_eps},
                      context);
}

// attention_input_ = concat([norm(embedding), norm(feature)]): the embedding half comes first.
void EagleDraft::make_first_input(const BatchView& batch, float* feature, ExecutionContext& context) {
  const int64_t rows = batch.num_rows;
  const int64_t hidden = config_.hidden_size;
  const LayerWeights& layer = weights_.layers.front();
  float* embedded = embedded_.data();
  float* attention_input = attention_input_.data();
  context.ops.embedding({.token_ids = batch.token_ids, .table = embedding_, .output = embedded, .num_rows = rows},
                        context);
  run_rms_norm(embedded, layer.input_norm, config_.rms_norm_eps, rows, attention_input, 2 * hidden, context);
  run_rms_norm(feature, layer.hidden_norm, config_.rms_norm_eps, rows, attention_input + hidden, 2 * hidden, context);
  if (!config_.norm_before_residual) return;
  context.ops.gather_rows({.input = attention_input + hidden,
                           .indices = nullptr,
                           .output = feature,
                           .num_rows = rows,
                           .num_columns = hidden,
                           .input_stride = 2 * hidden,
                           .output_stride = hidden},
                          context);
}

void EagleDraft::forward(const BatchView& batch, float* feature, KvStorage& kv, ExecutionContext& context) {
  const int64_t rows = batch.num_rows;
  reserve(rows);
  float* attention_input = attention_input_.data();
  const RopeRows rope = rope_.rows(batch.positions, rows, context);
  make_first_input(batch, feature, context);
  for (int32_t index = 0; index < config_.num_layers; ++index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
    if (index > 0) {
      run_rms_norm(feature, layer.input_norm, config_.rms_norm_eps, rows, attention_input, config_.hidden_size,
                   context);
    }
    if (!config_.sliding_windows.empty()) shape_.sliding_window = config_.sliding_windows[static_cast<size_t>(index)];
    run_transformer_layer(shape_, layer, batch, rope, kv.layer(index), attention_input, feature, layer_scratch_,
                          context);
  }
}

void EagleDraft::head(float* states, int64_t num_rows, float* logits, int64_t logits_stride,
                      ExecutionContext& context) {
  const int64_t hidden = config_.hidden_size;
  float* normed = config_.norm_output ? states : normed_.get(num_rows * hidden);
  run_rms_norm(states, weights_.final_norm, config_.rms_norm_eps, num_rows, normed, hidden, context);
  context.ops.linear({.input = normed,
                      .weight = head_,
                      .bias = nullptr,
                      .residual = nullptr,
                      .output = logits,
                      .num_rows = num_rows,
                      .input_stride = hidden,
                      .output_stride = logits_stride},
                     context);
}

}  // namespace eagle31rt
