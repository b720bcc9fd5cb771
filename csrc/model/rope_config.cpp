#include "model/rope_config.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace eagle31rt {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr double kMaxPositions = 1e9;

// Keys that a rope object may hold. A key of another rope type is inert, as in transformers; an unknown one (vLLM's
// attn_factor, mrope_section) would change the angles and is refused.
constexpr std::string_view kKnownKeys[] = {
    "rope_type", "type",      "rope_theta",       "factor",           "partial_rotary_factor",
    "beta_fast", "beta_slow", "attention_factor", "low_freq_factor",  "original_max_position_embeddings",
    "mscale",    "truncate",  "mscale_all_dim",   "high_freq_factor", "finetuned",
};

void refuse_unknown_keys(const JsonReader& rope) {
  for (const auto& [key, value] : rope.object().items()) {
    const bool known = std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    E31_CHECK(known || value.is_null(), kUnsupported, rope.source(), ": the rope option ", quote(key), " = ",
              describe(value), " is not supported");
  }
}

RopeKind parse_kind(const JsonReader& rope) {
  const auto rope_type = rope.text("rope_type");
  const auto type = rope.text("type");
  E31_CHECK(!rope_type || !type || *rope_type == *type, kCheckpoint, rope.source(), ": ", rope.name("rope_type"),
            " is ", rope.value("rope_type"), " but ", rope.name("type"), " is ", rope.value("type"), "; keep one");
  const std::string kind = rope_type ? *rope_type : type.value_or("default");
  if (kind == "default") return RopeKind::kDefault;
  if (kind == "linear") return RopeKind::kLinear;
  if (kind == "llama3") return RopeKind::kLlama3;
  if (kind == "yarn") return RopeKind::kYarn;
  fail(ErrorCode::kUnsupported, rope.source(), ": rope type ", quote(kind),
       " is not supported; supported are default, linear, llama3 and yarn");
}

// A value that may stand in the rope object or beside it.
double inner_or_outer(const JsonReader& config, const JsonReader* rope, const char* key, double fallback, double low,
                      double high) {
  const bool inner = rope != nullptr && rope->has(key);
  const double outer_value = config.number_or(key, fallback, low, high);
  if (!inner) return outer_value;
  const double value = rope->number(key, low, high);
  E31_CHECK(!config.has(key) || value == outer_value, kCheckpoint, config.source(), ": ", rope->name(key), " is ",
            value, " but ", config.name(key), " is ", outer_value, "; make them equal");
  return value;
}

void parse_llama3(const JsonReader& rope, RopeConfig& result) {
  result.factor = rope.number("factor", 1, kMaxFactor);
  result.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor);
  result.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor);
  E31_CHECK(result.low_freq_factor < result.high_freq_factor, kCheckpoint, rope.source(), ": ",
            rope.name("low_freq_factor"), " is ", result.low_freq_factor, "; it must be below ",
            rope.name("high_freq_factor"), ", which is ", result.high_freq_factor);
}

void parse_yarn(const JsonReader& rope, int32_t max_position_embeddings, RopeConfig& result) {
  // Without a factor transformers takes the ratio of the two lengths.
  const double ratio = max_position_embeddings / result.original_max_position_embeddings;
  result.factor = rope.number_or("factor", ratio, 1e-6, kMaxFactor);
  const auto nonzero_or = [&rope](const char* key, double fallback) {
    const double value = rope.number_or(key, fallback, 0, kMaxFactor);
    return value == 0 ? fallback : value;
  };
  result.beta_fast = nonzero_or("beta_fast", 32);
  result.beta_slow = nonzero_or("beta_slow", 1);
  E31_CHECK(result.beta_fast >= result.beta_slow, kCheckpoint, rope.source(), ": ", rope.name("beta_fast"), " is ",
            result.beta_fast, "; it must not be below ", rope.name("beta_slow"), ", which is ", result.beta_slow);
  if (rope.has("attention_factor")) result.attention_factor = rope.number("attention_factor", 1e-6, kMaxFactor);
  result.mscale = rope.number_or("mscale", 0, 0, kMaxFactor);
  result.mscale_all_dim = rope.number_or("mscale_all_dim", 0, 0, kMaxFactor);
  result.truncate = rope.boolean_or("truncate", true);
}

RopeConfig parse_one(const JsonReader& config, const JsonReader* rope, int32_t head_dim, int32_t max_positions,
                     double default_theta) {
  RopeConfig result;
  result.theta = inner_or_outer(config, rope, "rope_theta", default_theta, 1.0 + 1e-9, kMaxTheta);
  const double rotated = inner_or_outer(config, rope, "partial_rotary_factor", 1.0, 1e-6, 1.0);
  result.rotary_dim = static_cast<int32_t>(head_dim * rotated);
  E31_CHECK(result.rotary_dim >= 2 && result.rotary_dim % 2 == 0, kCheckpoint, config.source(),
            ": \"partial_rotary_factor\" ", rotated, " of head_dim ", head_dim, " rotates ", result.rotary_dim,
            " elements; it must be an even number >= 2");
  if (rope == nullptr) return result;
  refuse_unknown_keys(*rope);
  result.kind = parse_kind(*rope);
  if (result.kind == RopeKind::kLinear) result.factor = rope->number("factor", 1e-6, kMaxFactor);
  if (result.kind == RopeKind::kLlama3 || result.kind == RopeKind::kYarn) {
    result.original_max_position_embeddings =
        inner_or_outer(config, rope, "original_max_position_embeddings", max_positions, 1, kMaxPositions);
  }
  if (result.kind == RopeKind::kLlama3) parse_llama3(*rope, result);
  if (result.kind == RopeKind::kYarn) parse_yarn(*rope, max_positions, result);
  return result;
}

}  // namespace

RopeConfig parse_rope_object(const JsonReader& rope, int32_t head_dim, int32_t max_position_embeddings) {
  return parse_one(rope, &rope, head_dim, max_position_embeddings, 10000.0);
}

RopeConfig parse_rope_config(const JsonReader& config, int32_t head_dim, int32_t max_position_embeddings,
                             double default_theta) {
  const auto scaling = config.child("rope_scaling");
  const auto parameters = config.child("rope_parameters");
  const JsonReader* first = scaling ? &*scaling : parameters ? &*parameters : nullptr;
  const RopeConfig result = parse_one(config, first, head_dim, max_position_embeddings, default_theta);
  if (scaling && parameters) {  // some exporters write both spellings
    E31_CHECK(result == parse_one(config, &*parameters, head_dim, max_position_embeddings, default_theta), kCheckpoint,
              config.source(), ": ", config.name("rope_scaling"), " and ", config.name("rope_parameters"),
              " say different things; keep one");
  }
  return result;
}

}  // namespace eagle31rt
