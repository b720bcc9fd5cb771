#include "model/config.h"

#include <algorithm>

#include "base/check.h"
#include "model/config_checks.h"
#include "model/json_reader.h"
#include "model/rope_config.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxLayers = 1024;
constexpr size_t kMaxEosIds = 64;

// How the families differ. Everything else is the llama graph.
struct Family {
  const char* model_type;
  bool kv_heads_default;  // a missing num_key_value_heads means num_attention_heads
  bool qkv_bias;          // by model type, whatever attention_bias says
};

constexpr Family kFamilies[] = {
    {"llama", true, false},
    {"smollm", true, false},
    {"mistral", false, false},
    {"qwen2", false, true},
};

const Family& find_family(const JsonReader& config) {
  const auto model_type = config.text("model_type");
  E31_CHECK(model_type, kCheckpoint, config.source(), " lacks \"model_type\"");
  std::string supported;
  for (const Family& family : kFamilies) {
    if (*model_type == family.model_type) return family;
    supported += (supported.empty() ? "" : ", ") + std::string(family.model_type);
  }
  fail(ErrorCode::kUnsupported, config.source(), ": model_type ", quote(*model_type),
       " is not supported; supported are ", supported);
}

void refuse_draft(const JsonReader& config) {
  for (const char* key : {"eagle_config", "draft_vocab_size", "truncated_vocab_size", "speculators_model_type"}) {
    E31_CHECK(!config.has(key), kCheckpoint, config.source(), " has ", config.name(key),
              ": it is a draft; give it as the speculative model, not as the target");
  }
}

void add_eos_ids(const JsonReader& config, int32_t vocab_size, std::vector<int32_t>& ids) {
  for (const int32_t id :
       config.integers("eos_token_id", kMaxEosIds, 0, vocab_size - 1).value_or(std::vector<int32_t>{})) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

void parse_biases(const JsonReader& config, const Family& family, DecoderConfig& result) {
  const bool attention_bias = config.boolean_or("attention_bias", false);
  E31_CHECK(!family.qkv_bias || !attention_bias, kUnsupported, config.source(), ": ", config.name("attention_bias"),
            " is true; ", family.model_type, " has biases of query, key and value and no others");
  result.qkv_bias = family.qkv_bias || attention_bias;
  result.output_bias = attention_bias;
  result.mlp_bias = config.boolean_or("mlp_bias", false);
}

}  // namespace

DecoderConfig parse_decoder_config(const std::string& config_json, const std::string& generation_config_json,
                                   const std::string& source) {
  const Json root = parse_json_object(config_json, source);
  const JsonReader config(root, source);
  refuse_draft(config);
  const Family& family = find_family(config);

  DecoderConfig result;
  result.model_type = family.model_type;
  result.max_position_embeddings = config.integer("max_position_embeddings", 1, kMaxPositionEmbeddings);
  refuse_unsupported_options(config, result.max_position_embeddings);
  result.num_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  const LayerSizes sizes = parse_layer_sizes(config, family.kv_heads_default);
  result.hidden_size = sizes.hidden_size;
  result.intermediate_size = sizes.intermediate_size;
  result.num_heads = sizes.num_heads;
  result.num_kv_heads = sizes.num_kv_heads;
  result.head_dim = sizes.head_dim;
  result.vocab_size = config.integer("vocab_size", 1, kMaxVocabSize);
  result.rms_norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 1e-30, 1.0));
  result.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  parse_biases(config, family, result);
  result.rope = parse_rope_config(config, result.head_dim, result.max_position_embeddings);
  result.dtype = parse_config_dtype(config, DType::kFloat32);

  add_eos_ids(config, result.vocab_size, result.eos_token_ids);
  if (!generation_config_json.empty()) {
    const std::string generation_source = "the generation_config.json beside " + source;
    const Json generation = parse_json_object(generation_config_json, generation_source);
    add_eos_ids(JsonReader(generation, generation_source), result.vocab_size, result.eos_token_ids);
  }
  return result;
}

}  // namespace eagle31rt
