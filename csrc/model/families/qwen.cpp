// qwen2: biases of query, key and value. qwen3: norms of query and key. qwen3_moe: the same with experts. In all of
// them upper layers may have a sliding window.
#include "base/check.h"
#include "model/families/family.h"
#include "model/moe_config.h"
#include "model/sliding_windows.h"

namespace eagle31rt {
namespace {

constexpr const char* kWindow[] = {"sliding_window"};
constexpr const char* kExpertOptions[] = {"sliding_window", "num_experts", "num_local_experts",
                                          "moe_intermediate_size"};

void parse_upper_windows(const JsonReader& config, DecoderConfig& result) {
  constexpr int32_t kDefaultMaxWindowLayers = 28;  // as in transformers
  const bool on = config.boolean_or("use_sliding_window", false);
  const int32_t first = config.integer_or("max_window_layers", kDefaultMaxWindowLayers, 0, INT32_MAX);
  result.sliding_windows =
      parse_sliding_windows(config, result.num_layers, [=](int32_t layer) { return on && layer >= first; });
}

// Published files all state head_dim; without it transformers takes 128 whatever the other sizes are.
DecoderConfig parse_qwen3_attention(const JsonReader& config, const CommonRules& rules) {
  E31_CHECK(config.has("head_dim"), kCheckpoint, config.source(), " lacks \"head_dim\"; add it (128 if unsure)");
  DecoderConfig result = parse_common(config, rules);
  parse_biases(config, result);
  parse_upper_windows(config, result);
  result.qk_norm = true;
  return result;
}

}  // namespace

DecoderConfig parse_qwen2(const JsonReader& config) {
  DecoderConfig result = parse_common(config, {.understood = kWindow});
  E31_CHECK(!config.boolean_or("attention_bias", false), kUnsupported, config.source(), ": ",
            config.name("attention_bias"), " is true; qwen2 has biases of query, key and value and no others");
  parse_biases(config, result);
  parse_upper_windows(config, result);
  result.qkv_bias = true;
  return result;
}

DecoderConfig parse_qwen3(const JsonReader& config) { return parse_qwen3_attention(config, {.understood = kWindow}); }

DecoderConfig parse_qwen3_moe(const JsonReader& config) {
  DecoderConfig result = parse_qwen3_attention(config, {.understood = kExpertOptions});
  result.moe = parse_qwen3_experts(config);
  return result;
}

}  // namespace eagle31rt
