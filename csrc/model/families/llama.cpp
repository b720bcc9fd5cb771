// llama and smollm: the plain graph. mistral: the same, all layers with a sliding window where the file has one.
#include "model/families/family.h"
#include "model/sliding_windows.h"

namespace eagle31rt {
namespace {

constexpr const char* kWindow[] = {"sliding_window"};

}  // namespace

DecoderConfig parse_llama(const JsonReader& config) {
  DecoderConfig result = parse_common(config, {.kv_heads_default = true});
  parse_biases(config, result);
  return result;
}

DecoderConfig parse_mistral(const JsonReader& config) {
  DecoderConfig result = parse_common(config, {.understood = kWindow});
  parse_biases(config, result);
  const bool has_window = config.has("sliding_window");
  result.sliding_windows = parse_sliding_windows(config, result.num_layers, [=](int32_t) { return has_window; });
  return result;
}

}  // namespace eagle31rt
