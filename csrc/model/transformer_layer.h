// One pre-norm transformer layer from attention input to residual stream; the block that targets and drafts share.
//
//   attention: qkv = input @ Wqkv; rotate q, k; store k, v; attend; residual += attended @ Wo
//   MLP:       residual += (silu(gate) * up) @ Wdown, gate|up = norm(residual) @ Wgate_up
//   sandwich:  what attention and MLP add to the residual is normed first, if the weights have such norms
//   experts:   model/moe_block.h, instead of the MLP or, with shared experts, beside it
//
// The caller makes the attention input: norm(residual) in a decoder, concat(norm(embedding), norm(feature)) in a draft.
#pragma once

#include <cstdint>
#include <optional>

#include "device/execution_context.h"
#include "model/forward_batch.h"
#include "model/kv_storage.h"
#include "model/mla_block.h"
#include "model/moe_block.h"
#include "model/rope_table.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace eagle31rt {

struct LayerShape {
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  bool interleaved_rope;
  float rms_norm_eps;
  std::optional<float> attention_scale = {};  // else head_dim^-0.5
  int32_t sliding_window = 0;                 // 0: none
  Activation activation = Activation::kSilu;  // of the MLP
  bool sandwich_norms = false;
  std::optional<MlaConfig> mla = {};  // model/mla_block.h instead of the attention above
  std::optional<MoeConfig> moe;       // of the layers whose weights have experts

  int64_t widest_mlp() const {
    const int64_t shared = moe ? int64_t{moe->num_shared_experts} * moe->moe_intermediate_size : 0;
    return shared > intermediate_size ? shared : intermediate_size;
  }
};

// Activations of one layer, reused by all layers of a model.
struct LayerScratch {
  explicit LayerScratch(Device& device)
      : qkv(device),
        attended(device),
        normed(device),
        gate_up(device),
        activated(device),
        projected(device),
        mla(device),
        moe(device) {}
  void reserve(const LayerShape& shape, int64_t num_rows);

  Scratch qkv, attended, normed, gate_up, activated, projected;
  MlaScratch mla;
  MoeScratch moe;
};

// The KV cache of so many layers.
KvShape layers_kv_shape(const LayerShape& shape, int32_t num_layers, DType dtype);

// attention_input [num_rows, hidden_size, or twice that in the first layer of a draft]; residual [num_rows,
// hidden_size], updated in place.
void run_transformer_layer(const LayerShape& shape, const LayerWeights& weights, const BatchView& batch,
                           const RopeRows& rope, const LayerCache& cache, const float* attention_input, float* residual,
                           LayerScratch& scratch, ExecutionContext& context);

// output [num_rows, output_stride] = RMS norm of input [num_rows, size].
void run_rms_norm(const float* input, const Vector& weight, float epsilon, int64_t num_rows, float* output,
                  int64_t output_stride, ExecutionContext& context);

}  // namespace eagle31rt
