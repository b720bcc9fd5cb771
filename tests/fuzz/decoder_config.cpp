// Any text as config.json and generation_config.json of a target.
#include "fuzz.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eagle31rt;
  std::string_view input = as_text(data, size);
  const std::string config_text(take_text(input));
  const std::string generation_text(take_text(input));
  return run_untrusted([&] {
    const DecoderConfig config = parse_decoder_config(config_text, generation_text, "fuzz");
    require(config.num_layers > 0 && config.hidden_size > 0 && config.intermediate_size > 0 && config.vocab_size > 0);
    require(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0);
    require(config.head_dim > 0 && config.head_dim % 8 == 0 && config.head_dim <= 256);
    require(config.rope.rotary_dim % 2 == 0 && config.rope.rotary_dim <= config.head_dim);
    for (const int32_t id : config.eos_token_ids) require(id >= 0 && id < config.vocab_size);
    check_rope(config.rope);
  });
}
