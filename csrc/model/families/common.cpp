#include "model/config_checks.h"
#include "model/families/family.h"
#include "model/quantised_config.h"
#include "model/rope_config.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxLayers = 1024;

}  // namespace

DecoderConfig parse_common(const JsonReader& config, const CommonRules& rules) {
  DecoderConfig result;
  result.max_position_embeddings = config.integer("max_position_embeddings", 1, kMaxPositionEmbeddings);
  std::vector<const char*> understood(rules.understood.begin(), rules.understood.end());
  if (!rules.own_quantisation) result.quantised = parse_quantised_format(config);
  understood.push_back("quantization_config");
  refuse_unsupported_options(config, result.max_position_embeddings, understood);
  result.num_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  const LayerSizes sizes = parse_layer_sizes(config, rules.kv_heads_default, rules.latent_attention);
  result.hidden_size = sizes.hidden_size;
  result.intermediate_size = sizes.intermediate_size;
  result.num_heads = sizes.num_heads;
  result.num_kv_heads = sizes.num_kv_heads;
  result.head_dim = sizes.head_dim;
  result.vocab_size = config.integer("vocab_size", 1, kMaxVocabSize);
  result.rms_norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 1e-30, 1.0));
  result.tie_word_embeddings = config.boolean_or("tie_word_embeddings", rules.tied_by_default);
  if (!rules.own_rope && !rules.latent_attention) {
    result.rope = parse_rope_config(config, result.head_dim, result.max_position_embeddings);
  }
  result.dtype = parse_config_dtype(config, DType::kFloat32);
  return result;
}

void parse_biases(const JsonReader& config, DecoderConfig& result) {
  result.qkv_bias = result.output_bias = config.boolean_or("attention_bias", false);
  result.mlp_bias = config.boolean_or("mlp_bias", false);
}

}  // namespace eagle31rt
