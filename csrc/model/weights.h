// Weights of a decoder and of a draft, packed for the operators. Loading refuses, by name, anything missing, unused,
// of the wrong shape or dtype, or not finite.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/device_array.h"
#include "ops/linear/packed_weight.h"

namespace eagle31rt {

using Vector = DeviceArray<float>;  // norm weights and biases, widened to float32

// The routed experts of a layer. Experts lie at equal distances in memory, each in a weight of its own.
struct MoeWeights {
  PackedWeight router;                // [num_experts, hidden]
  std::vector<PackedWeight> gate_up;  // num_experts of [2 * moe_intermediate, hidden]: gate rows, then up rows
  std::vector<PackedWeight> down;     // num_experts of [hidden, moe_intermediate]
  Vector router_bias, correction;     // [num_experts]; empty if absent
  Vector gate_up_bias, down_bias;     // of all experts in order; empty if absent

  int64_t num_bytes() const;
};

// Multi-head latent attention. kv_b_proj is split by head: its key rows are absorbed into the query, its value rows are
// applied to what attention returns.
struct MlaWeights {
  PackedWeight query_up;               // [num_heads * query_dim, q_lora_rank or attention input width]
  std::vector<PackedWeight> key_up;    // num_heads of [kv_lora_rank, qk_nope_head_dim]
  std::vector<PackedWeight> value_up;  // num_heads of [v_head_dim, kv_lora_rank]
  Vector query_norm;                   // [q_lora_rank]; empty without q_lora_rank
  Vector latent_norm;                  // [kv_lora_rank]

  int64_t num_bytes() const;
};

// One transformer layer. Projections that share an input are one weight.
struct LayerWeights {
  PackedWeight qkv;      // [(num_heads + 2 * num_kv_heads) * head_dim, attention input width]; with mla
                         // [q_lora_rank + kv_lora_rank + qk_rope_head_dim, attention input width]
  PackedWeight output;   // [hidden, num_heads * (head_dim or v_head_dim)]
  PackedWeight gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows
  PackedWeight down;     // [hidden, intermediate]
  Vector qkv_bias, output_bias, gate_up_bias, down_bias;  // empty if absent
  Vector query_norm, key_norm;                            // [head_dim]; empty if absent
  Vector sinks;                                           // [num_heads]; empty if absent
  Vector input_norm;                                      // [hidden] (draft: of the token embedding)
  Vector hidden_norm;                                     // [hidden], draft only: of the feature
  Vector post_attention_norm;                             // [hidden]
  Vector attention_output_norm, mlp_output_norm;          // [hidden]; empty if absent: of what is added to the residual
  std::optional<MlaWeights> mla;
  std::optional<MoeWeights> moe;  // then gate_up and down are those of the shared experts, empty without any
};

struct DecoderWeights {
  PackedWeight embedding;  // [vocab, hidden]
  PackedWeight head;       // [vocab, hidden]; empty if tied to the embedding
  Vector final_norm;       // [hidden]
  std::vector<LayerWeights> layers;
  DType dtype = DType::kBFloat16;

  PackedWeightView head_view() const { return head.empty() ? embedding.view() : head.view(); }
  int64_t num_bytes() const;
};

struct DraftWeights {
  PackedWeight fc;  // [hidden, num_captured * target_hidden]
  Vector fc_bias;
  Vector fc_norm;          // [num_captured * target_hidden], concatenated; empty without a norm
  PackedWeight embedding;  // [vocab, hidden]; empty: shared with the target
  PackedWeight head;       // [draft_vocab, hidden]; empty: shared with the target
  Vector final_norm;       // [hidden]
  std::vector<LayerWeights> layers;
  std::vector<int32_t> draft_to_target;         // [draft_vocab] target ids, strictly ascending; empty: identity
  DeviceArray<int32_t> device_draft_to_target;  // the same for operators
  DType dtype = DType::kBFloat16;

  int64_t num_bytes() const;
};

// dtype: what to keep the weights in (the file's own with "auto" resolved by the caller).
DecoderWeights load_decoder_weights(const Checkpoint& checkpoint, const DecoderConfig& config, DType dtype,
                                    Device& device = cpu_device());
// One tensor of the file, or a part of one, inside a weight.
struct WeightPart {
  const std::string& name;  // canonical: "layers.3.mlp.gate.weight"
  int64_t rows, columns;    // of a vector its size and 1
  bool is_matrix;
  WeightForm form;  // in which a matrix is kept

  int64_t num_bytes(DType dtype) const;  // in memory, dtype being that of matrices that are not quantised
};

// The checks of load_decoder_weights that need the headers only; then `visit` sees what would be loaded. Returns the
// bytes of the tensors as they are stored.
int64_t check_decoder_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                              const std::function<void(const WeightPart&)>& visit = {});
DraftWeights load_draft_weights(const Checkpoint& checkpoint, const DraftConfig& config, const DecoderConfig& target,
                                DType dtype, Device& device = cpu_device());

}  // namespace eagle31rt
