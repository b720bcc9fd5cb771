#include "model/mla_config.h"

#include <cmath>

#include "base/check.h"
#include "model/rope_config.h"
#include "ops/mla_attention/mla_attention.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxLoraRank = int64_t{1} << 16;
constexpr int64_t kMaxLatentHeadDim = 1024;

// Kernels read vectors of 8 elements.
int32_t multiple_of_8(const JsonReader& config, const char* key, int64_t high) {
  const int32_t value = config.integer(key, 8, high);
  E31_CHECK(value % 8 == 0, kUnsupported, config.source(), ": ", config.name(key), " is ", value,
            "; supported are multiples of 8");
  return value;
}

// (nope + rope)^-0.5, times YaRN's factor for scores squared: DeepSeek applies it here, not to cosine and sine.
float score_scale(const MlaConfig& mla, const RopeConfig& rope) {
  double scale = 1.0 / std::sqrt(static_cast<double>(mla.query_dim()));
  if (rope.kind == RopeKind::kYarn && rope.mscale_all_dim != 0 && rope.factor > 1.0) {
    const double magnitude = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0;
    scale *= magnitude * magnitude;
  }
  return static_cast<float>(scale);
}

void refuse_options(const JsonReader& config, int32_t num_heads, int32_t num_kv_heads) {
  E31_CHECK(!config.boolean_or("attention_bias", false), kUnsupported, config.source(), ": ",
            config.name("attention_bias"), " is true; biases of a latent attention are not supported");
  E31_CHECK(!config.boolean_or("mla_use_nope", false), kUnsupported, config.source(), ": ", config.name("mla_use_nope"),
            " is true; a latent attention without rotary embedding is not supported");
  E31_CHECK(num_kv_heads == num_heads, kUnsupported, config.source(), ": ", config.name("num_key_value_heads"), " is ",
            num_kv_heads, "; in a latent attention it must be num_attention_heads, which is ", num_heads);
}

}  // namespace

MlaConfig parse_latent_attention(const JsonReader& config, int32_t num_heads, int32_t num_kv_heads) {
  refuse_options(config, num_heads, num_kv_heads);
  MlaConfig mla;
  if (config.has("q_lora_rank")) mla.q_lora_rank = multiple_of_8(config, "q_lora_rank", kMaxLoraRank);
  mla.kv_lora_rank = multiple_of_8(config, "kv_lora_rank", kMaxLatentDim);
  mla.qk_nope_head_dim = multiple_of_8(config, "qk_nope_head_dim", kMaxLatentHeadDim);
  mla.qk_rope_head_dim = multiple_of_8(config, "qk_rope_head_dim", kMaxLatentEntry - mla.kv_lora_rank);
  mla.v_head_dim = multiple_of_8(config, "v_head_dim", kMaxLatentHeadDim);
  return mla;
}

RopeConfig parse_latent_rope(const JsonReader& config, int32_t max_position_embeddings, MlaConfig& mla) {
  RopeConfig rope = parse_rope_config(config, mla.qk_rope_head_dim, max_position_embeddings);
  E31_CHECK(rope.rotary_dim == mla.qk_rope_head_dim, kUnsupported, config.source(),
            ": a partial_rotary_factor beside qk_rope_head_dim is not supported; remove it");
  rope.interleaved = config.boolean_or("rope_interleave", true);
  mla.scale = score_scale(mla, rope);
  return rope;
}

}  // namespace eagle31rt
