#include "model/decoder.h"

#include <cstring>
#include <utility>

#include "ops/ops.h"

namespace eagle31rt {

LayerShape decoder_layer_shape(const DecoderConfig& config) {
  return {.hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .attention_input_size = config.hidden_size,
          .rotary_dim = config.rope.rotary_dim,
          .interleaved_rope = config.rope.interleaved,
          .rms_norm_eps = config.rms_norm_eps};
}

Decoder::Decoder(DecoderConfig config, DecoderWeights weights, std::vector<int32_t> capture_layers)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      capture_layers_(std::move(capture_layers)),
      shape_(decoder_layer_shape(config_)),
      rope_(config_.rope) {}

void Decoder::capture(int32_t layers_done, int64_t num_rows, const float* residual, float* captured) const {
  if (captured == nullptr) return;
  const int64_t size = config_.hidden_size;
  for (size_t chunk = 0; chunk < capture_layers_.size(); ++chunk) {
    if (capture_layers_[chunk] != layers_done) continue;
    for (int64_t row = 0; row < num_rows; ++row) {
      std::memcpy(captured + row * captured_size() + static_cast<int64_t>(chunk) * size, residual + row * size,
                  static_cast<size_t>(size) * sizeof(float));
    }
  }
}

void Decoder::forward(const ForwardBatch& batch, std::span<const int32_t> logit_rows, const Output& output,
                      KvStorage& kv, ExecutionContext& context) {
  const int64_t rows = batch.num_rows();
  const int64_t hidden = config_.hidden_size;
  float* residual = residual_.get(rows * hidden);
  float* attention_input = attention_input_.get(rows * hidden);
  float* cosine = cosine_.get(rows * rope_.half_dim());
  float* sine = sine_.get(rows * rope_.half_dim());

  rope_.compute(batch.positions.data(), rows, cosine, sine);
  context.ops.embedding(
      {.token_ids = batch.token_ids.data(), .table = weights_.embedding.view(), .output = residual, .num_rows = rows},
      context);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    capture(layer, rows, residual, output.captured);
    run_rms_norm(residual, weights.input_norm, config_.rms_norm_eps, rows, attention_input, hidden, context);
    run_transformer_layer(shape_, weights, batch, {cosine, sine}, kv.layer(layer), attention_input, residual,
                          layer_scratch_, context);
  }
  capture(config_.num_layers, rows, residual, output.captured);

  if (logit_rows.empty()) return;
  const ScopedTimer timer(context.profiler, Work::kLogits);
  const int64_t num_logit_rows = static_cast<int64_t>(logit_rows.size());
  float* selected = selected_.get(num_logit_rows * hidden);
  for (int64_t i = 0; i < num_logit_rows; ++i) {
    std::memcpy(selected + i * hidden, residual + logit_rows[static_cast<size_t>(i)] * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
  run_rms_norm(selected, weights_.final_norm, config_.rms_norm_eps, num_logit_rows, selected, hidden, context);
  context.ops.linear({.input = selected,
                      .weight = weights_.head_view(),
                      .bias = nullptr,
                      .residual = nullptr,
                      .output = output.logits,
                      .num_rows = num_logit_rows,
                      .input_stride = hidden,
                      .output_stride = config_.vocab_size},
                     context);
}

}  // namespace eagle31rt
