// deepseek_v3 and kimi_k2: multi-head latent attention and a mixture of experts after the first layers.
#include "model/families/family.h"
#include "model/mla_config.h"
#include "model/moe_config.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxNextTokenLayers = 64;
constexpr const char* kUnderstood[] = {"n_routed_experts", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank",
                                       "qk_rope_head_dim"};

}  // namespace

DecoderConfig parse_deepseek_v3(const JsonReader& config) {
  DecoderConfig result =
      parse_common(config, {.kv_heads_default = true, .latent_attention = true, .understood = kUnderstood});
  result.mla = parse_latent_attention(config, result.num_heads, result.num_kv_heads);
  result.rope = parse_latent_rope(config, result.max_position_embeddings, *result.mla);
  result.head_dim = result.mla->query_dim();
  result.moe = parse_deepseek_experts(config);
  result.num_next_token_layers = config.integer_or("num_nextn_predict_layers", 0, 0, kMaxNextTokenLayers);
  return result;
}

}  // namespace eagle31rt
