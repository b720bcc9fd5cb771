// gpt_oss: experts in every layer, attention sinks, a sliding window in every second layer, biases throughout.
#include "base/check.h"
#include "model/families/family.h"
#include "model/moe_config.h"
#include "model/sliding_windows.h"

namespace eagle31rt {
namespace {

constexpr const char* kOptions[] = {"sliding_window", "num_local_experts", "num_experts"};

}  // namespace

DecoderConfig parse_gpt_oss(const JsonReader& config) {
  E31_CHECK(config.has("head_dim"), kCheckpoint, config.source(), " lacks \"head_dim\"; add it (64 if unsure)");
  DecoderConfig result = parse_common(config, {.own_quantisation = true, .understood = kOptions});
  result.qkv_bias = result.output_bias = config.boolean_or("attention_bias", true);
  result.attention_sinks = true;
  result.sliding_windows =
      parse_sliding_windows(config, result.num_layers, [](int32_t layer) { return layer % 2 == 0; });
  result.moe = parse_gpt_oss_experts(config);
  return result;
}

}  // namespace eagle31rt
