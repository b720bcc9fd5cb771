// The target: a llama-family decoder over packed ragged batches and a paged KV cache.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/kv_storage.h"
#include "model/rope_table.h"
#include "model/transformer_layer.h"
#include "model/weights.h"

namespace eagle31rt {

class Decoder {
 public:
  // capture_layers: ascending k of the residual streams R_k (after k layers; eagle31_spec notation) that forward()
  // returns; empty without a draft.
  // device: where the weights are and every pass runs. num_positions: see RopeTable.
  Decoder(DecoderConfig config, DecoderWeights weights, std::vector<int32_t> capture_layers,
          Device& device = cpu_device(), int64_t num_positions = 0);

  struct LogitRows {
    const int32_t* indices = nullptr;  // [count] in the device's memory; null: rows 0 .. count - 1
    int64_t count = 0;
  };
  struct Output {
    float* logits;    // [logit_rows.count, vocab_size]
    float* captured;  // [num_rows, capture_layers.size() * hidden_size] or null: do not capture
  };

  // Runs the batch, writing its KV, and fills `output` with the logits of `logit_rows`.
  void forward(const BatchView& batch, const LogitRows& logit_rows, const Output& output, KvStorage& kv,
               ExecutionContext& context);
  // After this, passes of up to so many rows allocate nothing.
  void reserve(int64_t num_rows, int64_t num_logit_rows);

  const std::vector<int32_t>& capture_layers() const { return capture_layers_; }
  void set_capture_layers(std::vector<int32_t> layers) noexcept { capture_layers_ = std::move(layers); }

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  KvShape kv_shape(DType dtype) const { return layers_kv_shape(shape_, config_.num_layers, dtype); }
  int64_t captured_size() const { return static_cast<int64_t>(capture_layers_.size()) * config_.hidden_size; }

 private:
  void capture(int32_t layers_done, int64_t num_rows, const float* residual, float* captured,
               ExecutionContext& context) const;
  void compute_logits(const float* residual, const LogitRows& rows, float* logits, ExecutionContext& context);

  DecoderConfig config_;
  DecoderWeights weights_;
  std::vector<int32_t> capture_layers_;
  LayerShape shape_;
  RopeTable rope_;
  std::optional<RopeTable> window_rope_;  // of layers with a sliding window, if theirs differs
  LayerScratch layer_scratch_;
  Scratch residual_, attention_input_, selected_;
};

// The shape of a decoder layer.
LayerShape decoder_layer_shape(const DecoderConfig& config);

}  // namespace eagle31rt
