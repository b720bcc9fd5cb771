#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/json.h"
#include "model/draft_checks.h"
#include "model/draft_formats.h"
#include "model/weight_loader.h"
#include "model/weights.h"

namespace eagle31rt {
namespace {

constexpr const char* kDraftToTarget = "d2t";
constexpr const char* kTargetToDraft = "t2d";
constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

std::string layer_prefix(int32_t index) { return concat("layers.", index, "."); }

// A tensor whose name tells that the draft is of another kind.
void refuse_tensor(const CanonicalNames& names, const char* part, const char* why) {
  const TensorEntry* entry = names.find_containing(part);
  E31_CHECK(entry == nullptr, kUnsupported, names.checkpoint().directory(), ": tensor ", quote(entry->name),
            " belongs to ", why, ", which is not supported");
}

// The graph of config.json must be that of the tensors.
void check_graph(const CanonicalNames& names, const DraftConfig& config) {
  struct Part {
    const char* tensor;
    bool expected;
    const char* what;
    const char* model_type;
  };
  const Part parts[] = {
      {"self_attn.q_norm.", config.qk_norm, "the qwen3 graph (norms of query and key)", "qwen3"},
      {"self_attn.kv_a_proj", config.mla.has_value(), "the deepseek graph (latent attention)", "deepseek_v3"},
  };
  const std::string& source = names.checkpoint().directory();
  for (const Part& part : parts) {
    const TensorEntry* entry = names.find_containing(part.tensor);
    E31_CHECK(entry == nullptr || part.expected, kCheckpoint, source, ": tensor ", quote(entry->name), " belongs to ",
              part.what, ", but architectures and model_type in config.json name another; set model_type to ",
              quote(part.model_type));
  }
  const TensorEntry* key = names.find("layers.0.self_attn.k_proj.weight");
  E31_CHECK(
      key == nullptr || !config.mla, kCheckpoint, source, ": tensor ", quote(key->name),
      " belongs to the llama graph, but config.json asks for the deepseek graph (latent attention); set model_type "
      "to \"llama\" and remove q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim");
}

// Only the first layer of a draft has a hidden_norm: the others are plain decoder layers.
void check_num_layers(const CanonicalNames& names, const DraftConfig& config) {
  if (names.find("fc.weight") == nullptr) return;  // no draft at all
  const std::string& source = names.checkpoint().directory();
  const TensorEntry* beyond = names.find_containing(layer_prefix(config.num_layers));
  E31_CHECK(beyond == nullptr, kCheckpoint, source, ": tensor ", quote(beyond->name), " belongs to layer ",
            config.num_layers, " counted from 0, but num_hidden_layers is ", config.num_layers,
            "; set it to the number of layers");
  for (int32_t index = 1; index < config.num_layers; ++index) {
    const TensorEntry* norm = names.find(layer_prefix(index) + "hidden_norm.weight");
    E31_CHECK(norm == nullptr, kUnsupported, source, ": tensor ", quote(norm->name),
              " is a second input norm of layer ", index,
              "; engines disagree on which of the two is used there, keep the one the draft was trained with, ",
              "as input_layernorm");
  }
}

// A switch and its tensors must come together: a file read without them drafts badly and silently.
void check_switch(const CanonicalNames& names, bool on, const char* key, const char* tensor) {
  const TensorEntry* entry = names.find_containing(tensor);
  E31_CHECK(on || entry == nullptr, kCheckpoint, names.checkpoint().directory(), ": tensor ", quote(entry->name),
            " is present, but ", key, " is not true in config.json; set it to true if the draft was trained with it");
  E31_CHECK(!on || entry != nullptr, kCheckpoint, names.checkpoint().directory(), ": ", key,
            " is true in config.json, but there is no tensor ", tensor);
}

void check_fc(const CanonicalNames& names, const DraftConfig& config) {
  const std::string& source = names.checkpoint().directory();
  E31_CHECK(names.find("fc.weight") != nullptr, kCheckpoint, source, " is not an EAGLE draft: it has no fc.weight",
            names.find_containing("layers.1.") ? " and more than one layer, so it looks like a whole model" : "",
            "; give a checkpoint made for this target");
  const TensorEntry& fc = *names.find("fc.weight");
  const TensorEntry* query = names.find("layers.0.self_attn.q_proj.weight");
  E31_CHECK(fc.shape.size() == 2, kCheckpoint, source, ": tensor ", quote(fc.name), " has shape ", fc.shape_string(),
            "; it must have two dimensions");
  const bool plain_query = query != nullptr && query->shape.size() == 2 && query->shape[1] == config.hidden_size;
  E31_CHECK(!(plain_query && fc.shape[1] == 2 * int64_t{config.hidden_size}), kUnsupported, source,
            " is an EAGLE-1 head (", quote(fc.name), " ", fc.shape_string(), ", ", quote(query->name), " ",
            query->shape_string(), "); only EAGLE-3 and EAGLE-3.1 are supported");
  const int64_t captured = static_cast<int64_t>(config.capture_layers.size());
  E31_CHECK(fc.shape[1] == captured * config.target_hidden_size, kCheckpoint, source, ": tensor ", quote(fc.name),
            " has ", fc.shape[1], " columns, but ", captured, " captured states of the target's ",
            config.target_hidden_size, " make ", captured * config.target_hidden_size,
            "; check the layer ids and target_hidden_size");
}

int64_t read_integer(const TensorEntry& entry, int64_t index) {
  if (entry.dtype == DType::kInt64) {
    int64_t value;
    std::memcpy(&value, entry.data + index * 8, 8);
    return value;
  }
  int32_t value;
  std::memcpy(&value, entry.data + index * 4, 4);
  return value;
}

// Whether d2t ascends strictly, as target ids do. Offsets do so only if no two neighbouring ids are drafted, which
// happens by chance with about exp(-Vd^2 / V): 1e-27 at the limit used here, never for 32000 of 128256.
bool holds_target_ids(const TensorEntry& entry, int64_t draft_vocab_size) {
  for (int64_t i = 1; i < draft_vocab_size; ++i) {
    if (read_integer(entry, i) <= read_integer(entry, i - 1)) return false;
  }
  return draft_vocab_size > 1;
}

// d2t holds offsets: target id = i + d2t[i], strictly ascending.
std::vector<int32_t> read_draft_to_target(const CanonicalNames& names, const DraftConfig& config) {
  const std::string& source = names.checkpoint().directory();
  const TensorEntry* entry = names.find(kDraftToTarget);
  if (entry == nullptr) {
    E31_CHECK(config.draft_vocab_size == config.vocab_size, kCheckpoint, source,
              " lacks tensor \"d2t\": the draft has ", config.draft_vocab_size, " of ", config.vocab_size,
              " tokens, and d2t says which");
    return {};
  }
  E31_CHECK(entry->supported_dtype && (entry->dtype == DType::kInt64 || entry->dtype == DType::kInt32), kCheckpoint,
            source, ": tensor \"d2t\" has dtype ", entry->dtype_name, "; it must be I64 or I32");
  E31_CHECK(entry->shape == std::vector<int64_t>{config.draft_vocab_size}, kCheckpoint, source,
            ": tensor \"d2t\" has shape ", entry->shape_string(), ", but the draft vocabulary has ",
            config.draft_vocab_size);
  const bool ascending = holds_target_ids(*entry, config.draft_vocab_size);
  const char* hint = ascending ? "; does it hold target ids instead of offsets (target id - index)?" : "";
  const int64_t size = config.draft_vocab_size;
  E31_CHECK(!ascending || size * size < 64 * int64_t{config.vocab_size}, kCheckpoint, source, ": tensor \"d2t\" holds ",
            size, " strictly ascending numbers: target ids; it must hold offsets, so subtract its index from each");
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < config.draft_vocab_size; ++i) {
    const int64_t offset = read_integer(*entry, i);
    // Bounded before it is added: an int64 from the file may overflow.
    E31_CHECK(offset >= -i && offset < config.vocab_size - i, kCheckpoint, source, ": \"d2t\"[", i, "] is the offset ",
              offset, ", which leaves the vocabulary of ", config.vocab_size, hint);
    const auto target = static_cast<int32_t>(i + offset);
    E31_CHECK(targets.empty() || target > targets.back(), kCheckpoint, source, ": \"d2t\"[", i, "] gives target id ",
              target, " after ", targets.back(), "; d2t must hold offsets that keep target ids strictly ascending");
    targets.push_back(target);
  }
  names.checkpoint().release_pages(*entry);
  if (config.draft_vocab_size == config.vocab_size) targets.clear();  // strictly ascending over all of V: the identity
  return targets;
}

// t2d is redundant; that it agrees with d2t shows that d2t holds offsets and not absolute ids.
void check_target_to_draft(const CanonicalNames& names, const DraftConfig& config,
                           const std::vector<int32_t>& targets) {
  const TensorEntry* entry = names.find(kTargetToDraft);
  if (entry == nullptr) return;
  const std::string& source = names.checkpoint().directory();
  const bool flags = entry->supported_dtype && (entry->dtype == DType::kBool || entry->dtype == DType::kUInt8);
  E31_CHECK(flags && entry->shape == std::vector<int64_t>{config.vocab_size}, kCheckpoint, source,
            ": tensor \"t2d\" is ", entry->dtype_name, " ", entry->shape_string(), "; it must be BOOL [",
            config.vocab_size, "]");
  const auto kept = [&](int64_t id) { return entry->data[id] != std::byte{0}; };
  int64_t sum = 0;
  for (int64_t id = 0; id < config.vocab_size; ++id) sum += kept(id);
  E31_CHECK(sum == config.draft_vocab_size, kCheckpoint, source, ": tensor \"t2d\" keeps ", sum,
            " tokens, but the draft vocabulary has ", config.draft_vocab_size);
  for (const int32_t target : targets) {
    E31_CHECK(kept(target), kCheckpoint, source, ": \"d2t\" keeps target id ", target,
              ", which \"t2d\" leaves out; does d2t hold absolute ids instead of offsets?");
  }
  names.checkpoint().release_pages(*entry);
}

bool same_width(const DraftConfig& config) { return config.hidden_size == config.target_hidden_size; }

void check_embedding(const CanonicalNames& names, const DraftConfig& config) {
  E31_CHECK(names.find(kEmbedding) != nullptr || same_width(config), kCheckpoint, names.checkpoint().directory(),
            " lacks tensor \"embed_tokens.weight\": the draft's hidden size ", config.hidden_size,
            " differs from the target's ", config.target_hidden_size, ", so the target's embedding cannot be shared");
}

void check_head(const CanonicalNames& names, const DraftConfig& config) {
  const std::string& source = names.checkpoint().directory();
  if (names.find(kHead) != nullptr) return;
  E31_CHECK(same_width(config) && config.draft_vocab_size == config.vocab_size, kCheckpoint, source,
            " lacks tensor \"lm_head.weight\": the target's head can be shared only with its vocabulary (",
            config.vocab_size, ", the draft has ", config.draft_vocab_size, ") and its hidden size (",
            config.target_hidden_size, ", the draft has ", config.hidden_size, ")");
  E31_CHECK(names.find(kEmbedding) == nullptr || !config.tie_word_embeddings, kUnsupported, source,
            ": a head tied to the draft's own embedding (tie_word_embeddings = true) is not supported; store it as "
            "lm_head.weight");
}

void add_embedding_and_head(WeightLoader& loader, const CanonicalNames& names, const DraftConfig& config,
                            DraftWeights& weights) {
  if (names.find(kEmbedding) != nullptr) {
    loader.add_matrix(weights.embedding, {{kEmbedding, config.vocab_size}}, config.hidden_size);
  }
  if (names.find(kHead) != nullptr) {
    loader.add_matrix(weights.head, {{kHead, config.draft_vocab_size}}, config.hidden_size);
  }
}

void add_fusion(WeightLoader& loader, const DraftConfig& config, DraftWeights& weights) {
  const int64_t captured = static_cast<int64_t>(config.capture_layers.size());
  const int64_t concat_width = captured * config.target_hidden_size;
  loader.add_matrix(weights.fc, {{"fc.weight", config.hidden_size}}, concat_width);
  if (config.fc_bias) loader.add_vector(weights.fc_bias, {{"fc.bias", config.hidden_size}});
  if (config.norm_before_fc) loader.add_vector(weights.fc_norm, {{"input_norm.weight", concat_width}});
  if (!config.fc_norm) return;
  std::vector<TensorPart> chunks;
  for (int64_t i = 0; i < captured; ++i)
    chunks.push_back({concat("fc_norm.", i, ".weight"), config.target_hidden_size});
  loader.add_vector(weights.fc_norm, std::move(chunks));
}

void add_draft_layer(WeightLoader& loader, DraftWeights& weights, const DraftConfig& config, int32_t index) {
  LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  add_layer(loader, layer,
            {.hidden = config.hidden_size,
             .intermediate = config.intermediate_size,
             .num_heads = config.num_heads,
             .num_kv_heads = config.num_kv_heads,
             .head_dim = config.head_dim,
             .attention_width = (index == 0 ? 2 : 1) * int64_t{config.hidden_size},
             .qkv_bias = config.qkv_bias,
             .output_bias = false,
             .mlp_bias = config.mlp_bias,
             .qk_norm = config.qk_norm,
             .mla = config.mla},
            layer_prefix(index));
  if (index > 0) return;
  loader.add_vector(layer.hidden_norm, {{layer_prefix(0) + "hidden_norm.weight", config.hidden_size}});
}

// What the graph of the config is made of.
void add_graph(WeightLoader& loader, const CanonicalNames& names, const DraftConfig& config, DraftWeights& weights) {
  add_fusion(loader, config, weights);
  add_embedding_and_head(loader, names, config, weights);
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int32_t index = 0; index < config.num_layers; ++index) add_draft_layer(loader, weights, config, index);
  loader.add_vector(weights.final_norm, {{"norm.weight", config.hidden_size}});
}

// Checks the tensors against the config. Afterwards names holds those of the graph only.
void check_tensors(CanonicalNames& names, const DraftConfig& config, std::vector<int32_t>& draft_to_target,
                   Findings& findings) {
  findings.check(Rule::kParallelDrafting, [&] { refuse_tensor(names, "mask_hidden", "P-EAGLE (parallel drafting)"); });
  findings.check(Rule::kQuantised, [&] { refuse_tensor(names, "weight_scale", "a quantised draft"); });
  findings.check(Rule::kArchitecture, [&] {
    check_graph(names, config);
    check_num_layers(names, config);
  });
  findings.check(Rule::kSwitchTensors, [&] {
    check_switch(names, config.fc_norm, "fc_norm", "fc_norm.");
    check_switch(names, config.norm_before_fc, "norm_before_fc", "input_norm.");
    check_switch(names, config.fc_bias, "bias", "fc.bias");
  });
  findings.check(Rule::kFusion, [&] { check_fc(names, config); });
  findings.check(Rule::kDraftToTarget, [&] { draft_to_target = read_draft_to_target(names, config); });
  findings.check(Rule::kTargetToDraft, [&] { check_target_to_draft(names, config, draft_to_target); });
  names.erase(kDraftToTarget);
  names.erase(kTargetToDraft);
  findings.check(Rule::kEmbedding, [&] { check_embedding(names, config); });
  findings.check(Rule::kHead, [&] { check_head(names, config); });
  for (const char* name : {kEmbedding, kHead}) {
    const bool own = names.find(name) != nullptr;
    findings.resolved(name, own ? "own" : "shared", own ? "the draft's tensor" : "the target's tensor");
  }
  DraftWeights weights;
  WeightLoader loader(names, config.dtype, cpu_device());
  add_graph(loader, names, config, weights);
  findings.check(Rule::kTensorShapes, [&] { loader.check_shapes(); });
  findings.check(Rule::kTensorsMissing, [&] { loader.check_missing(); });
  findings.check(Rule::kTensorsUnused, [&] { loader.check_unused(); });
}

}  // namespace

int64_t DraftWeights::num_bytes() const {
  int64_t bytes = static_cast<int64_t>(draft_to_target.size() * sizeof(int32_t));
  for (const LayerWeights& layer : layers) bytes += layer_bytes(layer);
  return bytes + fc.num_bytes() + embedding.num_bytes() + head.num_bytes() + vector_bytes(fc_bias) +
         vector_bytes(fc_norm) + vector_bytes(final_norm);
}

void check_draft_weights(const Checkpoint& checkpoint, const DraftConfig& config, Findings& findings) {
  std::optional<CanonicalNames> names;
  findings.check(Rule::kTensorNames, [&] { names.emplace(checkpoint, canonical_draft_name); });
  std::vector<int32_t> draft_to_target;
  if (names) check_tensors(*names, config, draft_to_target, findings);
}

DraftWeights load_draft_weights(const Checkpoint& checkpoint, const DraftConfig& config, const DecoderConfig& target,
                                DType dtype, Device& device) {
  E31_INVARIANT(config.target_hidden_size == target.hidden_size && config.vocab_size == target.vocab_size);
  Findings findings;
  std::optional<CanonicalNames> names;
  findings.check(Rule::kTensorNames, [&] { names.emplace(checkpoint, canonical_draft_name); });
  DraftWeights weights;
  weights.dtype = dtype;
  check_tensors(*names, config, weights.draft_to_target, findings);
  weights.device_draft_to_target = DeviceArray<int32_t>(device, weights.draft_to_target);
  WeightLoader loader(*names, dtype, device);
  add_graph(loader, *names, config, weights);
  loader.run();
  return weights;
}

}  // namespace eagle31rt
