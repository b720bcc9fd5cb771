// What a checkpoint's config.json says, parsed, checked and with every default resolved. Config files are untrusted:
// every number is bounded before it sizes anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eagle31rt/dtype.h"

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

// A llama-family decoder (llama, mistral, smollm, qwen2).
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
  RopeConfig rope;
  DType dtype = DType::kBFloat16;      // torch_dtype / dtype of the file
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, in order, distinct
};

// An EAGLE-3 / EAGLE-3.1 draft (eagle31_spec 1-3). Names follow the spec.
struct DraftConfig {
  int32_t hidden_size = 0;         // H
  int32_t target_hidden_size = 0;  // Ht
  int32_t intermediate_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;        // V
  int32_t draft_vocab_size = 0;  // Vd
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false, mlp_bias = false, fc_bias = false;
  RopeConfig rope;
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

}  // namespace eagle31rt
