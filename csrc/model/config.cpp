#include "model/config.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "model/checkpoint.h"
#include "model/families/family.h"
#include "model/json_reader.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxEosIds = 64;

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

// The text part of a multimodal model, with what only the whole says of it.
Json text_part(const JsonReader& config) {
  const auto text = config.child("text_config");
  E31_CHECK(text, kCheckpoint, config.source(), " lacks \"text_config\"");
  Json result = text->object();
  const bool has_dtype = text->has("dtype") || text->has("torch_dtype");
  for (const char* key : {"quantization_config", "dtype", "torch_dtype"}) {
    const bool known = text->has(key) || (has_dtype && std::string_view(key) != "quantization_config");
    if (!known && config.has(key)) result[key] = *config.find(key);
  }
  return result;
}

DecoderConfig parse_text(const JsonReader& config) {
  refuse_draft(config);
  const Family& family = find_family(config);
  DecoderConfig result = family.parse(config);
  result.model_type = family.model_type;
  add_eos_ids(config, result.vocab_size, result.eos_token_ids);
  return result;
}

DecoderConfig parse_wrapped(const JsonReader& config, const Wrapper& wrapper) {
  const Json text = text_part(config);
  DecoderConfig result = parse_text(JsonReader(text, config.source(), "text_config."));
  result.tensor_prefix = wrapper.text_prefix;
  result.ignored_prefixes.assign(wrapper.ignored_prefixes.begin(), wrapper.ignored_prefixes.end());
  add_eos_ids(config, result.vocab_size, result.eos_token_ids);
  return result;
}

}  // namespace

DecoderConfig parse_decoder_config(const std::string& config_json, const std::string& generation_config_json,
                                   const std::string& source) {
  const Json root = parse_json_object(config_json, source);
  const JsonReader config(root, source);
  const Wrapper* wrapper = find_wrapper(config);
  DecoderConfig result = wrapper == nullptr ? parse_text(config) : parse_wrapped(config, *wrapper);
  if (!generation_config_json.empty()) {
    const std::string generation_source = "the generation_config.json beside " + source;
    const Json generation = parse_json_object(generation_config_json, generation_source);
    add_eos_ids(JsonReader(generation, generation_source), result.vocab_size, result.eos_token_ids);
  }
  return result;
}

DecoderConfig read_decoder_config(const std::string& directory) {
  const std::string path = directory + "/config.json", generation = directory + "/generation_config.json";
  return parse_decoder_config(read_text_file(path), file_exists(generation) ? read_text_file(generation) : "", path);
}

}  // namespace eagle31rt
