// What a checkpoint's config.json says, parsed, checked and with every default resolved. Config files are untrusted:
// every number is bounded before it sizes anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eagle31rt/dtype.h"
#include "ops/moe_route/moe_route.h"
#include "ops/silu_mul/silu_mul.h"

namespace eagle31rt {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int32_t rotary_dim = 0;                                // rotated part of a head, even
  bool interleaved = false;                              // gpt-j pairs (2i, 2i+1) instead of halves
  double factor = 1.0;                                   // linear, llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double original_max_position_embeddings = 0;           // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor;                // yarn; otherwise from factor / mscale / mscale_all_dim
  double mscale = 0, mscale_all_dim = 0;                 // yarn
  bool truncate = true;                                  // yarn: floor / ceil of the correction range

  bool operator==(const RopeConfig&) const = default;
};

// How a checkpoint names and lays out its experts.
enum class ExpertTensors {
  kSeparate,  // mlp.gate, mlp.experts.N.{gate,up,down}_proj: qwen3_moe, deepseek_v3
  kFused,  // mlp.router, mlp.experts.{gate_up,down}_proj of all experts, transposed, gate and up interleaved: gpt_oss
  kMxfp4,  // the same, not transposed, in blocks of 32 4-bit floats with a scale
};

// How a checkpoint stores its quantised matrices. Which ones are quantised is told by their tensors; the others are
// plain. X is the name without ".weight".
struct QuantisedFormat {
  enum class Kind {
    kFp8Blocks,   // X.weight in F8_E4M3 and X.weight_scale_inv: deepseek_v3, and fp8 with weight_block_size in general
    kPackedInt4,  // X.weight_packed, X.weight_scale and X.weight_shape: compressed-tensors
  };
  Kind kind = Kind::kFp8Blocks;
  int32_t block_rows = 0, block_columns = 0;  // that share a scale; of kPackedInt4 1 and the group size
};

// (up + 1) * gate * sigmoid(alpha * gate), gate at most limit, up in [-limit, limit]: gpt_oss.
struct ClampedSwiglu {
  float alpha = 1.702f;
  float limit = 7.0f;
};

// The MLP of layers from num_dense_layers on. See ops/moe_route/moe_route.h for the routing.
struct MoeConfig {
  int32_t num_experts = 0;
  int32_t num_experts_per_token = 0;
  int32_t moe_intermediate_size = 0;  // of one expert
  int32_t num_shared_experts = 0;     // one MLP of so many times the width, for every token
  int32_t num_dense_layers = 0;       // the first ones, with a plain MLP of intermediate_size
  int32_t num_groups = 1, num_groups_chosen = 1;
  MoeScoring scoring = MoeScoring::kSoftmax;
  bool normalise_top_k = false;
  float routed_scaling_factor = 1.0f;
  bool bias_correction = false;  // of the scores, for the choice only
  bool router_bias = false, expert_biases = false;
  std::optional<ClampedSwiglu> clamped_swiglu;
  ExpertTensors tensors = ExpertTensors::kSeparate;
};

// Multi-head latent attention: keys and values of all heads are projections of one latent per position.
struct MlaConfig {
  int32_t q_lora_rank = 0;   // 0: queries come from one projection
  int32_t kv_lora_rank = 0;  // of the latent
  int32_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  float scale = 1.0f;  // of the scores
  // Of the norms inside. The published model code of targets (and transformers) leaves it at its default there,
  // whatever rms_norm_eps is; drafts are trained with their rms_norm_eps.
  float norm_epsilon = 1e-6f;

  int32_t query_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int32_t entry_dim() const { return kv_lora_rank + qk_rope_head_dim; }  // a position in the cache
};

// A decoder. Families (model/families/) differ in the options; without any it is the llama graph.
struct DecoderConfig {
  std::string model_type;
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;         // an RMS norm of every head of query and key before rope
  bool sandwich_norms = false;  // norms also of what attention and MLP add to the residual stream
  bool centred_norms = false;   // every norm multiplies by 1 + weight
  float embedding_scale = 1.0f;
  Activation activation = Activation::kSilu;  // of dense MLPs
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of the layers with a sliding window, if theirs differs
  std::vector<int32_t> sliding_windows;   // [num_layers] positions that a layer sees, 0: all; empty: no layer has one
  bool attention_sinks = false;           // one learned logit per head, see PagedAttentionParams::sinks
  std::optional<float> attention_scale;   // of the scores; else head_dim^-0.5
  std::optional<MlaConfig> mla;           // then num_kv_heads is num_heads and head_dim that of a query
  std::optional<MoeConfig> moe;
  std::optional<QuantisedFormat> quantised;
  int32_t num_next_token_layers = 0;  // behind the last layer in the file, for multi-token prediction: not read
  // Of a text model inside a multimodal one: what its tensor names start with, and those of the other parts.
  std::string tensor_prefix;
  std::vector<std::string> ignored_prefixes;
  DType dtype = DType::kBFloat16;      // torch_dtype / dtype of the file
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, in order, distinct
};

// An EAGLE-3 / EAGLE-3.1 draft (eagle31_spec 1-3). Names follow the spec.
struct DraftConfig {
  int32_t hidden_size = 0;         // H
  int32_t target_hidden_size = 0;  // Ht
  int32_t num_layers = 1;
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;               // V
  int32_t draft_vocab_size = 0;         // Vd
  int32_t max_position_embeddings = 0;  // of training; longer contexts run, with fewer accepted tokens
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false, mlp_bias = false, fc_bias = false;
  bool qk_norm = false;          // the qwen3 graph, as of DecoderConfig
  std::optional<MlaConfig> mla;  // the deepseek graph with a dense MLP, as of DecoderConfig
  RopeConfig rope;
  std::vector<int32_t> sliding_windows;  // [num_layers] as of DecoderConfig; empty: no layer has one
  DType dtype = DType::kBFloat16;
  // Canonical capture points k: the residual stream after k target layers (0 = embeddings, N = input of the last norm);
  // strictly ascending, 1..8 of them.
  std::vector<int32_t> capture_layers;
  std::string capture_rule;     // which rule of spec 1.1 resolved them, for messages: "override", "speculators", ...
  bool fc_norm = false;         // one RMS norm per captured chunk
  bool norm_before_fc = false;  // one RMS norm over the whole concat
  bool norm_output = false;     // post-norm feedback
  bool norm_before_residual = false;  // residual = hidden_norm(h)
  bool tie_word_embeddings = false;   // an own embedding is also the head, unless there is an own head
};

// Explicit overrides win over whatever the file says.
struct DraftOverrides {
  std::vector<int32_t> capture_layers;  // canonical k
  std::string layer_id_convention;      // "", "residual_index" (k = i) or "layer_output" (k = i + 1)
  std::string feedback = "auto";        // auto | pre | post
};

// Both take the text of config.json (generation_config.json may be empty) and a name for messages.
// Throw Error(kCheckpoint) for a broken file, Error(kUnsupported) for what this version cannot run, each by key name.
DecoderConfig parse_decoder_config(const std::string& config_json, const std::string& generation_config_json,
                                   const std::string& source);
DraftConfig parse_draft_config(const std::string& config_json, const DecoderConfig& target,
                               const DraftOverrides& overrides, const std::string& source);
// parse_decoder_config of the two files in `directory`; generation_config.json may be missing.
DecoderConfig read_decoder_config(const std::string& directory);

}  // namespace eagle31rt
