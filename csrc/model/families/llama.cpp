// llama, smollm and mistral: the plain graph.
#include "model/families/family.h"

namespace eagle31rt {

DecoderConfig parse_llama(const JsonReader& config) {
  DecoderConfig result = parse_common(config, {.kv_heads_default = true});
  parse_biases(config, result);
  return result;
}

DecoderConfig parse_mistral(const JsonReader& config) {
  DecoderConfig result = parse_common(config, {});
  parse_biases(config, result);
  return result;
}

}  // namespace eagle31rt
