// gemma3 (text): norms that multiply by 1 + weight, before and after attention and MLP; scaled embeddings; gelu; five
// layers with a sliding window and a rope of their own to one that sees everything.
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "model/config_checks.h"
#include "model/families/family.h"
#include "model/rope_config.h"
#include "model/sliding_windows.h"

namespace eagle31rt {
namespace {

constexpr const char* kOptions[] = {"sliding_window", "hidden_act"};

// transformers 5 writes one rope object per type of layer, earlier files rope_theta, rope_scaling and
// rope_local_base_freq.
void parse_ropes(const JsonReader& config, DecoderConfig& result) {
  constexpr double kGlobalTheta = 1e6, kLocalTheta = 1e4, kMaxTheta = 1e15;
  const auto parameters = config.child("rope_parameters");
  if (parameters && parameters->child("full_attention")) {
    const auto window = parameters->child("sliding_attention");
    E31_CHECK(window, kCheckpoint, config.source(), ": ", config.name("rope_parameters"),
              " has full_attention but no sliding_attention");
    result.rope =
        parse_rope_object(*parameters->child("full_attention"), result.head_dim, result.max_position_embeddings);
    result.window_rope = parse_rope_object(*window, result.head_dim, result.max_position_embeddings);
    return;
  }
  result.rope = parse_rope_config(config, result.head_dim, result.max_position_embeddings, kGlobalTheta);
  result.window_rope = RopeConfig{.theta = config.number_or("rope_local_base_freq", kLocalTheta, 1.0 + 1e-9, kMaxTheta),
                                  .rotary_dim = result.head_dim};
}

// transformers rounds the factor to the dtype of the embedding.
float embedding_scale(int32_t hidden_size, DType dtype) {
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden_size)));
  if (dtype == DType::kBFloat16) return bfloat16_to_float(float_to_bfloat16(scale));
  return dtype == DType::kFloat16 ? float16_to_float(float_to_float16(scale)) : scale;
}

}  // namespace

DecoderConfig parse_gemma3_text(const JsonReader& file) {
  // Published files leave out what equals the defaults of transformers' Gemma3TextConfig.
  Json object = {{"vocab_size", 262208},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 4},
                 {"head_dim", 256},
                 {"max_position_embeddings", 131072}};
  object.update(file.object());
  const JsonReader config(object, file.source());
  constexpr int32_t kWindowPattern = 6;
  DecoderConfig result = parse_common(config, {.tied_by_default = true, .own_rope = true, .understood = kOptions});
  const std::string activation = config.text("hidden_activation").value_or("gelu_pytorch_tanh");
  E31_CHECK(activation == "gelu_pytorch_tanh", kUnsupported, config.source(), ": ", config.name("hidden_activation"),
            " is ", quote(activation), "; only \"gelu_pytorch_tanh\" is supported");
  E31_CHECK(!config.boolean_or("use_bidirectional_attention", false), kUnsupported, config.source(), ": ",
            config.name("use_bidirectional_attention"), " is true; an embedding model is not supported");
  parse_biases(config, result);
  parse_ropes(config, result);
  const int32_t pattern = config.integer_or("sliding_window_pattern", kWindowPattern, 1, INT32_MAX);
  result.sliding_windows =
      parse_sliding_windows(config, result.num_layers, [=](int32_t layer) { return (layer + 1) % pattern != 0; });
  result.qk_norm = result.sandwich_norms = result.centred_norms = true;
  result.activation = Activation::kGeluTanh;
  result.embedding_scale = embedding_scale(result.hidden_size, result.dtype);
  const double scalar = config.number_or("query_pre_attn_scalar", 256, 1e-3, 1e6);
  result.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  return result;
}

}  // namespace eagle31rt
