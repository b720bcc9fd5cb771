#include "model/config_checks.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxIntermediateSize = int64_t{1} << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr size_t kMaxLayerTypes = 1024;

// Options that change the forward pass. Present means: not null, not false, and not the neutral value.
struct RefusedOption {
  const char* key;
  double neutral;  // the number that means "off"
  const char* what;
};

constexpr RefusedOption kQuantised[] = {
    {"quantization_config", 0, "quantised weights"},
    {"compression_config", 0, "quantised weights"},
};

constexpr RefusedOption kRefusedOptions[] = {
    {"num_local_experts", 0, "mixture of experts"},
    {"num_experts", 0, "mixture of experts"},
    {"n_routed_experts", 0, "mixture of experts"},
    {"moe_intermediate_size", 0, "mixture of experts"},
    {"q_lora_rank", 0, "multi-head latent attention"},
    {"kv_lora_rank", 0, "multi-head latent attention"},
    {"qk_rope_head_dim", 0, "multi-head latent attention"},
    {"attn_logit_softcapping", 0, "softcapping"},
    {"final_logit_softcapping", 0, "softcapping"},
    {"use_qk_norm", 0, "norms of query and key"},
    {"qk_norm", 0, "norms of query and key"},
    {"no_rope_layers", 0, "layers without rope"},
    {"logit_scale", 1, "scaled logits"},
    {"logits_scaling", 1, "scaled logits"},
    {"embedding_multiplier", 1, "scaled embeddings"},
    {"residual_multiplier", 1, "scaled residuals"},
    {"attention_multiplier", 1, "a scaled attention"},
};

void refuse_option(const JsonReader& config, const RefusedOption& option) {
  const Json* value = config.find(option.key);
  if (value == nullptr) return;
  const bool off =
      (value->is_boolean() && !value->get<bool>()) || (value->is_number() && value->get<double>() == option.neutral);
  E31_CHECK(off, kUnsupported, config.source(), ": ", config.name(option.key), " is ", describe(*value), "; ",
            option.what, " is not supported");
}

}  // namespace

LayerSizes parse_layer_sizes(const JsonReader& config, bool kv_heads_default, bool latent_attention) {
  LayerSizes sizes{};
  sizes.hidden_size = config.integer("hidden_size", 1, kMaxHiddenSize);
  sizes.intermediate_size = config.integer("intermediate_size", 1, kMaxIntermediateSize);
  sizes.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  sizes.num_kv_heads = kv_heads_default ? config.integer_or("num_key_value_heads", sizes.num_heads, 1, kMaxHeads)
                                        : config.integer("num_key_value_heads", 1, kMaxHeads);
  E31_CHECK(sizes.num_heads % sizes.num_kv_heads == 0, kCheckpoint, config.source(), ": ",
            config.name("num_attention_heads"), " is ", sizes.num_heads, ", not a multiple of ",
            config.name("num_key_value_heads"), ", which is ", sizes.num_kv_heads);
  if (latent_attention) return sizes;
  if (config.has("head_dim")) {
    sizes.head_dim = config.integer("head_dim", 1, kMaxHeadDim);
  } else {
    E31_CHECK(sizes.hidden_size % sizes.num_heads == 0, kCheckpoint, config.source(), ": ", config.name("hidden_size"),
              " is ", sizes.hidden_size, ", not a multiple of ", config.name("num_attention_heads"), ", which is ",
              sizes.num_heads, ", and there is no head_dim");
    sizes.head_dim = sizes.hidden_size / sizes.num_heads;
  }
  E31_CHECK(sizes.head_dim % 8 == 0 && sizes.head_dim <= kMaxHeadDim, kUnsupported, config.source(), ": head_dim is ",
            sizes.head_dim, "; supported are multiples of 8 up to ", kMaxHeadDim);
  return sizes;
}

void refuse_quantised(const JsonReader& config) {
  for (const RefusedOption& option : kQuantised) refuse_option(config, option);
}

void refuse_sliding_window(const JsonReader& config, int32_t max_position_embeddings) {
  if (const auto layer_types = config.texts("layer_types", kMaxLayerTypes)) {
    for (const std::string& type : *layer_types) {
      E31_CHECK(type == "full_attention", kUnsupported, config.source(), ": ", config.name("layer_types"), " holds ",
                quote(type), "; only full_attention is supported");
    }
    return;
  }
  const auto use = config.boolean("use_sliding_window");
  E31_CHECK(!use.value_or(false), kUnsupported, config.source(), ": ", config.name("use_sliding_window"),
            " is true; a sliding window is not supported");
  if (use || !config.has("sliding_window")) return;
  const int32_t window = config.integer("sliding_window", 1, INT32_MAX);
  E31_CHECK(window >= max_position_embeddings, kUnsupported, config.source(), ": ", config.name("sliding_window"),
            " is ", window, ", below max_position_embeddings (", max_position_embeddings,
            "); a sliding window is not supported. If prompt and output fit the window together, set it to null and "
            "lower max_position_embeddings");
}

void refuse_unsupported_options(const JsonReader& config, int32_t max_position_embeddings,
                                std::span<const char* const> understood) {
  const auto is_understood = [&](std::string_view key) {
    return std::find(understood.begin(), understood.end(), key) != understood.end();
  };
  for (const std::span<const RefusedOption> options : {std::span<const RefusedOption>(kQuantised), {kRefusedOptions}}) {
    for (const RefusedOption& option : options) {
      if (!is_understood(option.key)) refuse_option(config, option);
    }
  }
  const std::string activation = config.text("hidden_act").value_or("silu");
  E31_CHECK(is_understood("hidden_act") || activation == "silu", kUnsupported, config.source(), ": ",
            config.name("hidden_act"), " is ", quote(activation), "; only \"silu\" is supported");
  if (!is_understood("sliding_window")) refuse_sliding_window(config, max_position_embeddings);
}

int32_t serving_length(int32_t max_model_len, const DecoderConfig& target) {
  const int32_t limit = target.max_position_embeddings;
  const int32_t length = max_model_len > 0 ? max_model_len : limit;
  E31_CHECK(length <= limit, kInvalidArgument, "max_model_len is ", length, "; the model's max_position_embeddings is ",
            limit);
  E31_CHECK(length >= kMinModelLen, kInvalidArgument, "max_model_len is ", length, "; give ", kMinModelLen, " or more");
  return length;
}

DType parse_config_dtype(const JsonReader& config, DType fallback) {
  const auto dtype = config.text("dtype");
  const auto torch_dtype = config.text("torch_dtype");
  E31_CHECK(!dtype || !torch_dtype || *dtype == *torch_dtype, kCheckpoint, config.source(), ": ", config.name("dtype"),
            " is ", config.value("dtype"), " but ", config.name("torch_dtype"), " is ", config.value("torch_dtype"),
            "; keep one");
  std::string name = dtype ? *dtype : torch_dtype.value_or("auto");
  if (name == "auto") return fallback;
  if (name.starts_with("torch.")) name = name.substr(6);
  E31_CHECK(name == "float32" || name == "bfloat16" || name == "float16", kUnsupported, config.source(), ": dtype ",
            quote(name), " is not supported; supported are float32, bfloat16 and float16");
  return parse_floating_point_dtype(name);
}

}  // namespace eagle31rt
