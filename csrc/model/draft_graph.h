// The layers of a draft: which graph they have, and how config.json describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

constexpr size_t kMaxArchitectures = 16;  // of a file

enum class DraftGraph {
  kLlama,
  kQwen3,     // with norms of query and key
  kDeepseek,  // with a latent attention; its MLP is dense, whatever the file says about experts
};

// top: the file; layer: its part with the sizes, the same one in flat files. An architecture that names a graph
// decides, as in engines that choose their class by it; else the model_type of the layer; without one a latent
// attention shows by its kv_lora_rank. Throws Error(kUnsupported) for another model_type.
DraftGraph parse_draft_graph(const JsonReader& top, const JsonReader& layer);

// Options that refuse_unsupported_options() must leave to the graph.
std::span<const char* const> understood_options(DraftGraph graph);

// Fills in what belongs to the layers: their number and sizes, biases, norms and attention, without rope.
void parse_draft_layers(DraftGraph graph, const JsonReader& layer, DraftConfig& result);
// Then the sliding windows. Throws Error(kCheckpoint) for a sliding_window below max_position_embeddings without
// layer_types, and what parse_sliding_windows() does.
void parse_draft_windows(const JsonReader& layer, int32_t max_position_embeddings, DraftConfig& result);
// Then the rotary embedding. max_position_embeddings: as of parse_rope_config().
void parse_draft_rope(const JsonReader& layer, int32_t max_position_embeddings, DraftConfig& result);

}  // namespace eagle31rt
