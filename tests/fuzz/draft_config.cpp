// Any text as config.json of a draft, for a fixed target, with any overrides: the first byte chooses those.
#include "fuzz.h"
#include "model/config.h"

namespace {

eagle31rt::DraftOverrides overrides_of(uint8_t choice) {
  static constexpr const char* kConventions[] = {"", "residual_index", "layer_output", "unknown"};
  static constexpr const char* kFeedbacks[] = {"auto", "pre", "post", "unknown"};
  eagle31rt::DraftOverrides overrides;
  overrides.layer_id_convention = kConventions[choice & 3];
  overrides.feedback = kFeedbacks[(choice >> 2) & 3];
  if (choice & 16) overrides.capture_layers = {1, 2, choice >> 5};
  return overrides;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eagle31rt;
  if (size == 0) return 0;
  DecoderConfig target;
  target.num_layers = 8;
  target.hidden_size = 32;
  target.vocab_size = 96;
  target.max_position_embeddings = 512;
  const std::string text(as_text(data + 1, size - 1));
  return run_untrusted([&] {
    const DraftConfig config = parse_draft_config(text, target, overrides_of(data[0]), "fuzz");
    require(config.target_hidden_size == 32 && config.vocab_size == 96);
    require(config.draft_vocab_size > 0 && config.draft_vocab_size <= 96);
    require(!config.capture_layers.empty() && config.capture_layers.size() <= 8);
    int32_t previous = -1;
    for (const int32_t layer : config.capture_layers) {
      require(layer > previous && layer <= 8);
      previous = layer;
    }
    require(!(config.fc_norm && config.norm_before_fc));
    check_rope(config.rope);
  });
}
