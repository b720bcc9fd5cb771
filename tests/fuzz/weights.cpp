// A config.json, a zero byte and a safetensors image: loaded as a target (first byte even) or as a draft (odd). Names,
// shapes and d2t come from the file and must not lead to an access outside it.
#include "model/weights.h"

#include <cstring>
#include <memory>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eagle31rt;
  if (size == 0) return 0;
  std::string_view input = as_text(data + 1, size - 1);
  const std::string config_text(take_text(input));
  // A copy of its own: reading past its end is an error that the sanitizer sees.
  const auto image = std::make_unique<std::byte[]>(input.size());
  std::memcpy(image.get(), input.data(), input.size());
  return run_untrusted([&] {
    const Checkpoint checkpoint = Checkpoint::from_memory(image.get(), input.size(), "fuzz");
    if (data[0] % 2 == 0) {
      const DecoderConfig config = parse_decoder_config(config_text, "", "fuzz");
      const DecoderWeights weights = load_decoder_weights(checkpoint, config, config.dtype);
      require(weights.layers.size() == static_cast<size_t>(config.num_layers) && weights.num_bytes() > 0);
      return;
    }
    DecoderConfig target;
    target.num_layers = 2;
    target.hidden_size = 8;
    target.vocab_size = 6;
    target.max_position_embeddings = 64;
    const DraftConfig config = parse_draft_config(config_text, target, {}, "fuzz");
    const DraftWeights weights = load_draft_weights(checkpoint, config, target, config.dtype);
    int32_t previous = -1;
    for (const int32_t id : weights.draft_to_target) {
      require(id > previous && id < 6);
      previous = id;
    }
  });
}
