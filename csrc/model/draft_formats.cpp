#include "model/draft_formats.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "model/draft_graph.h"
#include "model/weight_loader.h"

namespace eagle31rt {
namespace {

template <typename Predicate>
bool any_architecture(const JsonReader& top, const Predicate& predicate) {
  const auto names = top.texts("architectures", kMaxArchitectures).value_or(std::vector<std::string>{});
  return std::any_of(names.begin(), names.end(), predicate);
}

bool has_architecture(const JsonReader& top, std::string_view wanted) {
  return any_architecture(top, [wanted](const std::string& name) { return name == wanted; });
}

// Automodel saves the config of the target, draft sizes set into it. Its draft is one llama layer whatever this says.
constexpr const char* kTargetKeys[] = {
    "num_hidden_layers",     "model_type",  "num_experts",    "num_local_experts",  "num_experts_per_tok",
    "moe_intermediate_size", "layer_types", "sliding_window", "use_sliding_window", "quantization_config",
};

bool is_automodel(const JsonReader& top) {
  // Its script for SGLang renames the architecture; parallel_drafting is always written.
  return has_architecture(top, "LlamaEagle3DraftModel") ||
         (top.has("parallel_drafting") && has_architecture(top, "LlamaForCausalLMEagle3"));
}

bool is_modelopt(const JsonReader& top) {
  const auto eagle = top.child("eagle_config");
  return eagle && eagle->has("use_mtp_layernorm");
}

// SpecForge, of the same architecture name, has its ids in eagle_config only.
bool is_vllm(const JsonReader& top) {
  return top.has("eagle_aux_hidden_state_layer_ids") ||
         any_architecture(top, [](const std::string& name) { return name.starts_with("Eagle3"); });
}

bool is_safeailab(const JsonReader& top) {
  return has_architecture(top, "LlamaForCausalLM") && (top.has("draft_vocab_size") || top.has("truncated_vocab_size"));
}

constexpr const char* kTwoPlaces = "`eagle_config` or top level; states or layers, told apart by the usual lists";

constexpr DraftFormat kFormats[] = {
    {.name = "speculators",
     .recognised_by = "`speculators_model_type`",
     .layer_ids = "top level; states",
     .matches = [](const JsonReader& top) { return top.has("speculators_model_type"); },
     .nested_layer = true},
    {.name = "NeMo Automodel",
     .recognised_by = "architecture `LlamaEagle3DraftModel`, or `parallel_drafting` beside `LlamaForCausalLMEagle3`",
     .layer_ids = "none: the usual list",
     .matches = is_automodel,
     .unread = kTargetKeys},
    {.name = "TorchSpec",
     .recognised_by = "`_torchspec_version`",
     .layer_ids = kTwoPlaces,
     .matches = [](const JsonReader& top) { return top.has("_torchspec_version"); }},
    {.name = "NVIDIA ModelOpt",
     .recognised_by = "`eagle_config.use_mtp_layernorm`",
     .layer_ids = kTwoPlaces,
     .matches = is_modelopt},
    {.name = "vLLM",
     .recognised_by = "an architecture that starts with `Eagle3`, or layer ids at the top level",
     .layer_ids = kTwoPlaces,
     .matches = is_vllm},
    {.name = "SpecForge",
     .recognised_by = "architecture `LlamaForCausalLMEagle3`",
     .layer_ids = kTwoPlaces,
     .matches = [](const JsonReader& top) { return has_architecture(top, "LlamaForCausalLMEagle3"); },
     .own_norm_output = true},
    {.name = "SafeAILab",
     .recognised_by = "architecture `LlamaForCausalLM` with `draft_vocab_size` or `truncated_vocab_size`",
     .layer_ids = "none: the usual list",
     .matches = is_safeailab},
    {.name = "flat",
     .recognised_by = "anything else with the tensors of a draft",
     .layer_ids = kTwoPlaces,
     .matches = [](const JsonReader&) { return true; }},
};

struct Spelling {
  std::string_view file;
  std::string_view canonical;
};

constexpr Spelling kPrefixes[] = {
    {"midlayer.", "layers.0."},  // SafeAILab, SpecForge, TorchSpec
};

constexpr Spelling kNames[] = {
    // SGLang's older names of the chunk norms
    {"aux_norm_low.weight", "fc_norm.0.weight"},
    {"aux_norm_mid.weight", "fc_norm.1.weight"},
    {"aux_norm_high.weight", "fc_norm.2.weight"},
};

}  // namespace

std::span<const DraftFormat> draft_formats() { return kFormats; }

const DraftFormat& recognise_draft_format(const JsonReader& top) {
  return *std::find_if(std::begin(kFormats), std::end(kFormats) - 1,
                       [&](const DraftFormat& format) { return format.matches(top); });
}

void drop_unread_keys(Json& config, const DraftFormat& format) {
  for (const char* key : format.unread) config.erase(key);
}

std::string_view canonical_draft_name(const std::string& file_name, std::string& written) {
  const std::string_view name = strip_model_prefix(file_name);
  if (name.ends_with("rotary_emb.inv_freq")) return "";
  for (const Spelling& prefix : kPrefixes) {
    if (!name.starts_with(prefix.file)) continue;
    return written = std::string(prefix.canonical) + std::string(name.substr(prefix.file.size()));
  }
  for (const Spelling& spelling : kNames) {
    if (name == spelling.file) return spelling.canonical;
  }
  return name;
}

}  // namespace eagle31rt
