#include "model/decoder.h"

#include <utility>

#include "ops/ops.h"

namespace eagle31rt {

LayerShape decoder_layer_shape(const DecoderConfig& config) {
  return {.hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rotary_dim = config.rope.rotary_dim,
          .interleaved_rope = config.rope.interleaved,
          .rms_norm_eps = config.rms_norm_eps,
          .attention_scale = config.attention_scale,
          .activation = config.activation,
          .sandwich_norms = config.sandwich_norms,
          .mla = config.mla,
          .moe = config.moe};
}

Decoder::Decoder(DecoderConfig config, DecoderWeights weights, std::vector<int32_t> capture_layers, Device& device,
                 int64_t num_positions)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      capture_layers_(std::move(capture_layers)),
      shape_(decoder_layer_shape(config_)),
      rope_(config_.rope, device, num_positions),
      window_rope_(config_.window_rope
                       ? std::optional<RopeTable>(std::in_place, *config_.window_rope, device, num_positions)
                       : std::nullopt),
      layer_scratch_(device),
      residual_(device),
      attention_input_(device),
      selected_(device) {}

void Decoder::reserve(int64_t num_rows, int64_t num_logit_rows) {
  residual_.get(num_rows * config_.hidden_size);
  attention_input_.get(num_rows * config_.hidden_size);
  selected_.get(num_logit_rows * config_.hidden_size);
  layer_scratch_.reserve(shape_, num_rows);
  rope_.reserve(num_rows);
  if (window_rope_) window_rope_->reserve(num_rows);
}

void Decoder::capture(int32_t layers_done, int64_t num_rows, const float* residual, float* captured,
                      ExecutionContext& context) const {
  if (captured == nullptr) return;
  const int64_t size = config_.hidden_size;
  for (size_t chunk = 0; chunk < capture_layers_.size(); ++chunk) {
    if (capture_layers_[chunk] != layers_done) continue;
    context.ops.gather_rows({.input = residual,
                             .indices = nullptr,
                             .output = captured + static_cast<int64_t>(chunk) * size,
                             .num_rows = num_rows,
                             .num_columns = size,
                             .input_stride = size,
                             .output_stride = captured_size()},
                            context);
  }
}

void Decoder::forward(const BatchView& batch, const LogitRows& logit_rows, const Output& output, KvStorage& kv,
                      ExecutionContext& context) {
  const int64_t rows = batch.num_rows;
  const int64_t hidden = config_.hidden_size;
  reserve(rows, logit_rows.count);
  float* residual = residual_.data();
  float* attention_input = attention_input_.data();

  const RopeRows rope = rope_.rows(batch.positions, rows, context);
  const RopeRows window_rope = window_rope_ ? window_rope_->rows(batch.positions, rows, context) : rope;
  context.ops.embedding({.token_ids = batch.token_ids,
                         .table = weights_.embedding.view(),
                         .output = residual,
                         .num_rows = rows,
                         .scale = config_.embedding_scale},
                        context);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    capture(layer, rows, residual, output.captured, context);
    run_rms_norm(residual, weights.input_norm, config_.rms_norm_eps, rows, attention_input, hidden, context);
    if (!config_.sliding_windows.empty()) shape_.sliding_window = config_.sliding_windows[static_cast<size_t>(layer)];
    const RopeRows& angles = shape_.sliding_window > 0 ? window_rope : rope;
    run_transformer_layer(shape_, weights, batch, angles, kv.layer(layer), attention_input, residual, layer_scratch_,
                          context);
  }
  capture(config_.num_layers, rows, residual, output.captured, context);
  if (logit_rows.count > 0) compute_logits(residual, logit_rows, output.logits, context);
}

void Decoder::compute_logits(const float* residual, const LogitRows& rows, float* logits, ExecutionContext& context) {
  const ScopedTimer timer(context.profiler, Work::kLogits);
  const int64_t hidden = config_.hidden_size;
  float* selected = selected_.data();
  if (rows.indices != nullptr) {
    context.ops.gather_rows({.input = residual,
                             .indices = rows.indices,
                             .output = selected,
                             .num_rows = rows.count,
                             .num_columns = hidden,
                             .input_stride = hidden,
                             .output_stride = hidden},
                            context);
    residual = selected;
  }
  run_rms_norm(residual, weights_.final_norm, config_.rms_norm_eps, rows.count, selected, hidden, context);
  context.ops.linear({.input = selected,
                      .weight = weights_.head_view(),
                      .bias = nullptr,
                      .residual = nullptr,
                      .output = logits,
                      .num_rows = rows.count,
                      .input_stride = hidden,
                      .output_stride = config_.vocab_size},
                     context);
}

}  // namespace eagle31rt
