#include "model/eagle_draft.h"

#include <cstring>
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
          .attention_input_size = 2 * config.hidden_size,
          .rotary_dim = config.rope.rotary_dim,
          .interleaved_rope = config.rope.interleaved,
          .rms_norm_eps = config.rms_norm_eps};
}

FcNormMode fc_norm_mode(const DraftConfig& config) {
  if (config.fc_norm) return FcNormMode::kPerChunk;
  return config.norm_before_fc ? FcNormMode::kWhole : FcNormMode::kNone;
}

}  // namespace

EagleDraft::EagleDraft(DraftConfig config, DraftWeights weights, const Decoder& target)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      embedding_(weights_.embedding.empty() ? target.weights().embedding.view() : weights_.embedding.view()),
      head_(weights_.head.empty() ? target.weights().head_view() : weights_.head.view()),
      shape_(draft_layer_shape(config_)),
      rope_(config_.rope) {}

void EagleDraft::fuse(const float* captured, int64_t num_rows, float* feature, ExecutionContext& context) const {
  context.ops.fc_norm({.captured = captured,
                       .norm_weight = weights_.fc_norm.empty() ? nullptr : weights_.fc_norm.data(),
                       .weight = weights_.fc.view(),
                       .bias = weights_.fc_bias.empty() ? nullptr : weights_.fc_bias.data(),
                       .output = feature,
                       .num_rows = num_rows,
                       .chunk_size = config_.target_hidden_size,
                       .num_chunks = static_cast<int32_t>(config_.capture_layers.size()),
                       .mode = fc_norm_mode(config_),
                       .epsilon = config_.rms_norm_eps},
                      context);
}

void EagleDraft::forward(const ForwardBatch& batch, float* feature, KvStorage& kv, ExecutionContext& context) {
  const int64_t rows = batch.num_rows();
  const int64_t hidden = config_.hidden_size;
  float* embedded = embedded_.get(rows * hidden);
  float* attention_input = attention_input_.get(rows * 2 * hidden);
  float* cosine = cosine_.get(rows * rope_.half_dim());
  float* sine = sine_.get(rows * rope_.half_dim());

  rope_.compute(batch.positions.data(), rows, cosine, sine);
  context.ops.embedding(
      {.token_ids = batch.token_ids.data(), .table = embedding_, .output = embedded, .num_rows = rows}, context);
  // concat([norm(embedding), norm(feature)]): the embedding half comes first.
  run_rms_norm(embedded, weights_.layer.input_norm, config_.rms_norm_eps, rows, attention_input, 2 * hidden, context);
  run_rms_norm(feature, weights_.layer.hidden_norm, config_.rms_norm_eps, rows, attention_input + hidden, 2 * hidden,
               context);
  if (config_.norm_before_residual) {
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(feature + row * hidden, attention_input + row * 2 * hidden + hidden,
                  static_cast<size_t>(hidden) * sizeof(float));
    }
  }
  run_transformer_layer(shape_, weights_.layer, batch, {cosine, sine}, kv.layer(0), attention_input, feature,
                        layer_scratch_, context);
}

void EagleDraft::head(float* states, int64_t num_rows, float* logits, ExecutionContext& context) {
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
                      .output_stride = config_.draft_vocab_size},
                     context);
}

}  // namespace eagle31rt
