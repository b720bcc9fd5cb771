#include "model/config.h"

#include <algorithm>

#include "base/check.h"
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

}  // namespace

DecoderConfig parse_decoder_config(const std::string& config_json, const std::string& generation_config_json,
                                   const std::string& source) {
  const Json root = parse_json_object(config_json, source);
  const JsonReader config(root, source);
  refuse_draft(config);
  const Family& family = find_family(config);

  DecoderConfig result = family.parse(config);
  result.model_type = family.model_type;
  add_eos_ids(config, result.vocab_size, result.eos_token_ids);
  if (!generation_config_json.empty()) {
    const std::string generation_source = "the generation_config.json beside " + source;
    const Json generation = parse_json_object(generation_config_json, generation_source);
    add_eos_ids(JsonReader(generation, generation_source), result.vocab_size, result.eos_token_ids);
  }
  return result;
}

}  // namespace eagle31rt
