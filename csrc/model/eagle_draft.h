// An EAGLE-3 / EAGLE-3.1 draft: transformer layers, mostly one, that read the target's captured states (eagle31_spec
// 1-2). The first takes [norm(embedding), norm(feature)]; others are plain decoder layers on its output.
//
// A slot pairs the feature of position p with the token of position p + 1 and predicts the token of p + 2. Its KV entry
// has index p + 1 (the token's), so that a draft page depends on the tokens of its own page only; index 0 holds
// nothing. The rotary position is p, as the heads were trained.
//
// The feature is fuse(captured states) for verified positions, and the fed-back state while drafting:
//   EAGLE-3:   the layer output before the last norm
//   EAGLE-3.1: the normed output (config key norm_output)
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/decoder.h"
#include "model/kv_storage.h"
#include "model/rope_table.h"
#include "model/transformer_layer.h"
#include "model/weights.h"

namespace eagle31rt {

class EagleDraft {
 public:
  // `target` must outlive the draft: embedding and head may be shared with it.
  // device, num_positions: as of the target.
  EagleDraft(DraftConfig config, DraftWeights weights, const Decoder& target, Device& device = cpu_device(),
             int64_t num_positions = 0);

  // captured [num_rows, num_captured * target_hidden_size] -> feature [num_rows, hidden_size].
  void fuse(const float* captured, int64_t num_rows, float* feature, ExecutionContext& context) const;

  // One pass over the batch: feature [num_rows, hidden_size] becomes the output of the last layer, in place. Writes
  // draft KV.
  void forward(const BatchView& batch, float* feature, KvStorage& kv, ExecutionContext& context);

  // states [num_rows, hidden_size] (outputs of the last layer) -> logits [num_rows, logits_stride], the first
  // draft_vocab_size of a row over draft ids. With norm_output the states become the normed ones, so that `states` is
  // what the next draft step feeds back.
  void head(float* states, int64_t num_rows, float* logits, int64_t logits_stride, ExecutionContext& context);
  // After this, passes of up to so many rows allocate nothing.
  void reserve(int64_t num_rows);

  // Target token id of a draft id, for the host.
  int32_t target_id(int32_t draft_id) const {
    return weights_.draft_to_target.empty() ? draft_id : weights_.draft_to_target[static_cast<size_t>(draft_id)];
  }
  // Captured states of one position, concatenated: floats.
  int64_t captured_size() const {
    return static_cast<int64_t>(config_.capture_layers.size()) * config_.target_hidden_size;
  }
  const DraftConfig& config() const { return config_; }
  const DraftWeights& weights() const { return weights_; }
  KvShape kv_shape(DType dtype) const { return layers_kv_shape(shape_, config_.num_layers, dtype); }

 private:
  void make_first_input(const BatchView& batch, float* feature, ExecutionContext& context);

  DraftConfig config_;
  DraftWeights weights_;
  PackedWeightView embedding_, head_;
  LayerShape shape_;
  RopeTable rope_;
  LayerScratch layer_scratch_;
  Scratch embedded_, attention_input_, normed_;
};

}  // namespace eagle31rt
