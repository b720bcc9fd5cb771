// The families of targets: how each spells its decoder in config.json. A new one is a parser here and a line in
// family_table.cpp; the forward pass is Decoder's for all of them.
#pragma once

#include <span>
#include <string>

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

// A parser fills everything but model_type and eos_token_ids. It throws Error(kCheckpoint) for a broken file and
// Error(kUnsupported) for an option that the graph does not have, each by key name.
using ParseFamily = DecoderConfig (*)(const JsonReader& config);

struct Family {
  const char* model_type;
  ParseFamily parse;
};

// Throws Error(kUnsupported) with the list of families if the file's model_type is none of them.
const Family& find_family(const JsonReader& config);

// A multimodal model whose text part, the object text_config, is of one of the families.
struct Wrapper {
  const char* model_type;
  const char* text_prefix;                        // of the text part's tensors
  std::span<const char* const> ignored_prefixes;  // of the other parts' tensors
};

// nullptr if the file's model_type is none of them.
const Wrapper* find_wrapper(const JsonReader& config);

// What the llama graph is made of: sizes, norms, rope, dtype. All families start from it.
struct CommonRules {
  bool kv_heads_default = false;                 // a missing num_key_value_heads means num_attention_heads
  bool own_quantisation = false;                 // the family reads quantization_config itself
  bool latent_attention = false;                 // the family reads head sizes and rope itself (model/mla_config.h)
  bool tied_by_default = false;                  // of the embedding and the head
  bool own_rope = false;                         // the family parses it
  std::span<const char* const> understood = {};  // options that the family reads itself, not to be refused
};
DecoderConfig parse_common(const JsonReader& config, const CommonRules& rules);
// attention_bias and mlp_bias, of all projections.
void parse_biases(const JsonReader& config, DecoderConfig& result);

DecoderConfig parse_llama(const JsonReader& config);
DecoderConfig parse_mistral(const JsonReader& config);
DecoderConfig parse_qwen2(const JsonReader& config);
DecoderConfig parse_qwen3(const JsonReader& config);
DecoderConfig parse_qwen3_moe(const JsonReader& config);
DecoderConfig parse_gpt_oss(const JsonReader& config);
DecoderConfig parse_gemma3_text(const JsonReader& config);
DecoderConfig parse_deepseek_v3(const JsonReader& config);

}  // namespace eagle31rt
