#include "model/moe_config.h"

#include <algorithm>

#include "base/check.h"
#include "model/quantised_config.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxSharedExperts = 64;
constexpr int64_t kMaxLayers = 1024;
constexpr double kMaxFactor = 1e6;

void parse_sizes(const JsonReader& config, const char* num_experts, const char* width, MoeConfig& moe) {
  moe.num_experts = config.integer(num_experts, 1, kMaxExperts);
  moe.num_experts_per_token = config.integer("num_experts_per_tok", 1, std::min(moe.num_experts, kMaxExpertsPerToken));
  moe.moe_intermediate_size = config.integer(width, 1, kMaxWidth);
}

// An option that must be absent or hold the one integer that the graph has.
void require(const JsonReader& config, const char* key, int32_t wanted, const char* what) {
  const int32_t value = config.integer_or(key, wanted, INT32_MIN, INT32_MAX);
  E31_CHECK(value == wanted, kUnsupported, config.source(), ": ", config.name(key), " is ", value, "; ", what,
            " is not supported, only ", wanted);
}

void require(const JsonReader& config, const char* key, const char* wanted) {
  const std::string value = config.text(key).value_or(wanted);
  E31_CHECK(value == wanted, kUnsupported, config.source(), ": ", config.name(key), " is ", quote(value), "; only ",
            quote(wanted), " is supported");
}

}  // namespace

MoeConfig parse_qwen3_experts(const JsonReader& config) {
  MoeConfig moe;
  parse_sizes(config, config.has("num_local_experts") ? "num_local_experts" : "num_experts", "moe_intermediate_size",
              moe);
  moe.normalise_top_k = config.boolean_or("norm_topk_prob", false);
  require(config, "decoder_sparse_step", 1, "a mixture of experts in some layers only");
  E31_CHECK(config.integers("mlp_only_layers", kMaxLayers, 0, kMaxLayers).value_or(std::vector<int32_t>{}).empty(),
            kUnsupported, config.source(), ": ", config.name("mlp_only_layers"),
            " lists layers; plain layers between those with experts are not supported");
  return moe;
}

MoeConfig parse_gpt_oss_experts(const JsonReader& config) {
  MoeConfig moe;
  parse_sizes(config, "num_local_experts", "intermediate_size", moe);
  moe.normalise_top_k = true;  // softmax over the chosen ones
  moe.router_bias = moe.expert_biases = true;
  ClampedSwiglu activation;
  activation.alpha = static_cast<float>(config.number_or("swiglu_alpha", activation.alpha, 1e-3, 1e3));
  activation.limit = static_cast<float>(config.number_or("swiglu_limit", activation.limit, 1e-3, 1e6));
  moe.clamped_swiglu = activation;
  moe.tensors = ExpertTensors::kFused;
  if (const auto quantisation = config.child("quantization_config")) {
    require_quantisation_method(*quantisation, "mxfp4");
    moe.tensors = ExpertTensors::kMxfp4;
    E31_CHECK(moe.moe_intermediate_size % 32 == 0 && config.integer("hidden_size", 1, kMaxWidth) % 32 == 0, kCheckpoint,
              config.source(), ": MXFP4 experts need hidden_size and intermediate_size that are multiples of 32");
  }
  return moe;
}

MoeConfig parse_deepseek_experts(const JsonReader& config) {
  MoeConfig moe;
  parse_sizes(config, "n_routed_experts", "moe_intermediate_size", moe);
  require(config, "scoring_func", "sigmoid");
  require(config, "topk_method", "noaux_tc");
  require(config, "moe_layer_freq", 1, "a mixture of experts in some layers only");
  moe.scoring = MoeScoring::kSigmoid;
  moe.bias_correction = true;
  moe.normalise_top_k = config.boolean_or("norm_topk_prob", true);
  moe.routed_scaling_factor = static_cast<float>(config.number("routed_scaling_factor", 1e-6, kMaxFactor));
  moe.num_shared_experts = config.integer_or("n_shared_experts", 0, 0, kMaxSharedExperts);
  moe.num_dense_layers = config.integer("first_k_dense_replace", 0, kMaxLayers);
  moe.num_groups = config.integer("n_group", 1, std::min(moe.num_experts, kMaxExpertGroups));
  moe.num_groups_chosen = config.integer("topk_group", 1, moe.num_groups);
  E31_CHECK(moe.num_experts % moe.num_groups == 0, kCheckpoint, config.source(), ": ", config.name("n_routed_experts"),
            " is ", moe.num_experts, ", not a multiple of ", config.name("n_group"), ", which is ", moe.num_groups);
  const int32_t num_candidates = moe.num_experts / moe.num_groups * moe.num_groups_chosen;
  E31_CHECK(moe.num_experts_per_token <= num_candidates, kCheckpoint, config.source(), ": ",
            config.name("num_experts_per_tok"), " is ", moe.num_experts_per_token, ", but the ", moe.num_groups_chosen,
            " groups of ", config.name("topk_group"), " have ", num_candidates, " experts");
  return moe;
}

}  // namespace eagle31rt
