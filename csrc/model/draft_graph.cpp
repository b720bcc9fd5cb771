#include "model/draft_graph.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/config_checks.h"
#include "model/mla_config.h"
#include "model/rope_config.h"
#include "model/sliding_windows.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxLayers = 1024;

struct NamedGraph {
  std::string_view name;
  DraftGraph graph;
};

// Parts of architectures[i]: vLLM's and SGLang's names, TorchSpec's.
constexpr NamedGraph kArchitectures[] = {
    {"Deepseek", DraftGraph::kDeepseek},
    {"DeepSeek", DraftGraph::kDeepseek},
    {"Qwen3For", DraftGraph::kQwen3},
};
constexpr NamedGraph kModelTypes[] = {
    {"llama", DraftGraph::kLlama},       {"mistral", DraftGraph::kLlama},        {"qwen3", DraftGraph::kQwen3},
    {"deepseek", DraftGraph::kDeepseek}, {"deepseek_v2", DraftGraph::kDeepseek}, {"deepseek_v3", DraftGraph::kDeepseek},
    {"kimi_k2", DraftGraph::kDeepseek},
};

// Files of deepseek drafts may keep what the target's config says about experts.
constexpr const char* kDeepseekOptions[] = {"q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "n_routed_experts",
                                            "moe_intermediate_size"};

}  // namespace

DraftGraph parse_draft_graph(const JsonReader& top, const JsonReader& layer) {
  for (const std::string& name : top.texts("architectures", kMaxArchitectures).value_or(std::vector<std::string>{})) {
    for (const NamedGraph& known : kArchitectures) {
      if (name.find(known.name) != name.npos) return known.graph;
    }
  }
  if (!layer.has("model_type")) return layer.has("kv_lora_rank") ? DraftGraph::kDeepseek : DraftGraph::kLlama;
  const std::string model_type = *layer.text("model_type");
  std::string names;
  for (const NamedGraph& known : kModelTypes) {
    if (model_type == known.name) return known.graph;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  fail(ErrorCode::kUnsupported, layer.source(), ": ", layer.name("model_type"), " of a draft is ", quote(model_type),
       "; supported are ", names);
}

std::span<const char* const> understood_options(DraftGraph graph) {
  if (graph == DraftGraph::kDeepseek) return kDeepseekOptions;
  return {};
}

void parse_draft_layers(DraftGraph graph, const JsonReader& layer, DraftConfig& result) {
  const bool latent = graph == DraftGraph::kDeepseek;
  const LayerSizes sizes = parse_layer_sizes(layer, /*kv_heads_default=*/true, latent);
  result.num_layers = layer.integer_or("num_hidden_layers", 1, 1, kMaxLayers);
  result.hidden_size = sizes.hidden_size;
  result.intermediate_size = sizes.intermediate_size;
  result.num_heads = sizes.num_heads;
  result.num_kv_heads = sizes.num_kv_heads;
  result.head_dim = sizes.head_dim;
  result.rms_norm_eps = static_cast<float>(layer.number_or("rms_norm_eps", 1e-6, 1e-30, 1.0));
  result.qkv_bias = layer.boolean_or("attention_bias", false);
  result.mlp_bias = layer.boolean_or("mlp_bias", false);
  result.qk_norm = graph == DraftGraph::kQwen3;
  if (!latent) return;
  result.mla = parse_latent_attention(layer, sizes.num_heads, sizes.num_kv_heads);
  result.mla->norm_epsilon = result.rms_norm_eps;
  result.head_dim = result.mla->query_dim();
}

void parse_draft_windows(const JsonReader& layer, int32_t max_position_embeddings, DraftConfig& result) {
  const auto types = layer.texts("layer_types", kMaxLayers);
  if (!types) {
    const bool off = !layer.has("sliding_window") || layer.boolean("use_sliding_window") == false;
    // Engines differ: some give all layers the window, some none.
    E31_CHECK(off || layer.integer("sliding_window", 1, INT32_MAX) >= max_position_embeddings, kCheckpoint,
              layer.source(), ": ", layer.name("sliding_window"), " is ", layer.value("sliding_window"), ", but ",
              layer.name("layer_types"), " does not say which layers have it; add the list, with full_attention or ",
              "sliding_attention for each of the ", result.num_layers, " layers");
    return;
  }
  if (std::ranges::all_of(*types, [](const std::string& type) { return type == "full_attention"; })) return;
  result.sliding_windows = parse_sliding_windows(layer, result.num_layers, [](int32_t) { return false; });
  E31_CHECK(!result.mla, kUnsupported, layer.source(), ": ", layer.name("layer_types"),
            " holds \"sliding_attention\"; a sliding window of a latent attention is not supported");
}

void parse_draft_rope(const JsonReader& layer, int32_t max_position_embeddings, DraftConfig& result) {
  result.rope = result.mla ? parse_latent_rope(layer, max_position_embeddings, *result.mla)
                           : parse_rope_config(layer, result.head_dim, max_position_embeddings);
}

}  // namespace eagle31rt
