#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "model/capture_layers.h"
#include "model/config.h"
#include "model/config_checks.h"
#include "model/json_reader.h"
#include "model/rope_config.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxArchitectures = 16;
constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";

// A draft file: switches at the top, layer sizes at the top (flat) or in transformer_layer_config (speculators), and
// eagle_config with a few more.
struct DraftFile {
  JsonReader top;
  JsonReader layer;
  std::optional<JsonReader> eagle;
  bool speculators = false;
};

DraftFile open_file(const Json& root, const std::string& source) {
  const JsonReader top(root, source);
  const auto kind = top.text("speculators_model_type");
  if (!kind) return {top, top, top.child("eagle_config"), false};
  E31_CHECK(*kind == "eagle3", kUnsupported, source, ": speculators_model_type ", quote(*kind),
            " is not supported; only eagle3 is");
  const auto layer = top.child("transformer_layer_config");
  E31_CHECK(layer, kCheckpoint, source, " has speculators_model_type but no \"transformer_layer_config\"");
  return {top, *layer, top.child("eagle_config"), true};
}

void refuse_architecture(const DraftFile& file) {
  struct Refused {
    std::string_view part;
    const char* why;
  };
  // Substrings of architectures[i] and, for the graph, of model_type.
  static constexpr Refused kArchitectures[] = {
      {"PEagle", "P-EAGLE (parallel drafting)"},
      {"Peagle", "P-EAGLE (parallel drafting)"},
      {"Deepseek", "a draft with multi-head latent attention"},
      {"Qwen3For", "a draft with the qwen3 graph (norms of query and key)"},
      {"Eagle3Deep", "a draft of more than one layer"},
      {"DFlash", "DFlash"},
      {"Medusa", "Medusa"},
  };
  for (const std::string& name :
       file.top.texts("architectures", kMaxArchitectures).value_or(std::vector<std::string>{})) {
    for (const Refused& refused : kArchitectures) {
      E31_CHECK(name.find(refused.part) == name.npos, kUnsupported, file.top.source(), ": architecture ", quote(name),
                " is ", refused.why, ", which is not supported");
    }
    E31_CHECK(!name.ends_with("Eagle") && !name.starts_with("EagleLlama"), kUnsupported, file.top.source(),
              ": architecture ", quote(name), " is an EAGLE-1 head; only EAGLE-3 and EAGLE-3.1 are supported");
  }
  const std::string model_type = file.layer.text("model_type").value_or("llama");
  E31_CHECK(model_type == "llama" || model_type == "mistral", kUnsupported, file.layer.source(), ": ",
            file.layer.name("model_type"), " of a draft is ", quote(model_type),
            "; supported is the llama graph (llama, mistral)");
}

void refuse_not_a_draft(const DraftFile& file) {
  if (!file.layer.has("num_hidden_layers")) return;
  const int32_t num_layers = file.layer.integer("num_hidden_layers", 1, 1024);
  if (num_layers == 1) return;
  bool draft = file.speculators || file.eagle || file.top.has("draft_vocab_size") ||
               file.top.has("truncated_vocab_size") || file.top.has(kLayerIds);
  for (const std::string& name :
       file.top.texts("architectures", kMaxArchitectures).value_or(std::vector<std::string>{})) {
    draft = draft || name.find("Eagle") != name.npos;
  }
  E31_CHECK(draft, kCheckpoint, file.top.source(), " is not an EAGLE draft: it describes a whole model of ", num_layers,
            " layers; give a checkpoint made for this target");
  fail(ErrorCode::kUnsupported, file.layer.source(), ": ", file.layer.name("num_hidden_layers"), " is ", num_layers,
       "; drafts of more than one layer are not supported");
}

// A boolean that must have one value to be supported.
void require_flag(const std::optional<JsonReader>& reader, const char* key, bool wanted, const char* why) {
  if (!reader || reader->boolean_or(key, wanted) == wanted) return;
  fail(ErrorCode::kUnsupported, reader->source(), ": ", reader->name(key), " is ", wanted ? "false" : "true", "; ", why,
       " is not supported");
}

void refuse_unsupported_draft(const DraftFile& file) {
  refuse_architecture(file);
  refuse_not_a_draft(file);
  require_flag(file.eagle, "use_aux_hidden_state", true, "a draft fed by the last hidden state only (EAGLE-1 input)");
  require_flag(file.eagle, "use_input_layernorm_in_first_layer", true, "a draft without input_layernorm");
  require_flag(file.eagle, "use_last_layernorm", true, "a draft without a final norm");
  require_flag(file.eagle, "use_mtp_layernorm", false, "an extra MTP norm");
  require_flag(file.eagle, "eh_proj_before_attn", false, "a projection before the attention");
  require_flag(file.top, "parallel_drafting", false, "P-EAGLE (parallel drafting)");
  for (const char* key : {"mask_token_id", "pard_token", "ptd_token_id"}) {
    E31_CHECK(!file.top.has(key), kUnsupported, file.top.source(), ": ", file.top.name(key), " is ",
              file.top.value(key), "; P-EAGLE (parallel drafting) is not supported");
  }
  if (!file.eagle) return;
  E31_CHECK(file.eagle->number_or("parallel_draft_step", 1, 0, 1e6) <= 1, kUnsupported, file.eagle->source(), ": ",
            file.eagle->name("parallel_draft_step"), " is ", file.eagle->value("parallel_draft_step"),
            "; parallel drafting is not supported");
  E31_CHECK(!file.eagle->has("layer_ids"), kUnsupported, file.eagle->source(), ": ", file.eagle->name("layer_ids"),
            " is not supported; use ", kLayerIds);
}

// A switch under two names, which must agree if both are there.
bool switch_of(const JsonReader& first, const char* key, const std::optional<JsonReader>& second, const char* alias) {
  const bool value = first.boolean_or(key, false);
  if (!second || !second->has(alias)) return value;
  const bool other = second->boolean_or(alias, false);
  E31_CHECK(!first.has(key) || value == other, kCheckpoint, first.source(), ": ", first.name(key), " is ",
            first.value(key), " but ", second->name(alias), " is ", second->value(alias), "; make them equal");
  return other;
}

void parse_switches(const DraftFile& file, const std::string& feedback, DraftConfig& result) {
  const JsonReader& top = file.top;
  result.fc_norm = switch_of(top, "fc_norm", top, "use_aux_norm");
  result.norm_output = switch_of(top, "norm_output", file.eagle, "return_hidden_post_norm");
  result.norm_before_fc = switch_of(top, "norm_before_fc", file.eagle, "norm_before_fc");
  E31_CHECK(
      !(result.norm_before_fc && result.fc_norm), kCheckpoint, top.source(),
      ": norm_before_fc and fc_norm are both true; engines disagree on what that means, keep the one the draft was "
      "trained with");
  // speculators' own default changed between versions, and vLLM's differs from it.
  E31_CHECK(
      !file.speculators || top.has("norm_before_residual"), kCheckpoint, top.source(),
      " lacks \"norm_before_residual\", whose default differs between versions of speculators; write true or false "
      "into the file");
  result.norm_before_residual = top.boolean_or("norm_before_residual", false);
  E31_CHECK(feedback == "auto" || feedback == "pre" || feedback == "post", kInvalidArgument, "feedback is ",
            quote(feedback), "; give auto, pre or post");
  if (feedback != "auto") result.norm_output = feedback == "post";
}

void parse_sizes(const DraftFile& file, const DecoderConfig& target, DraftConfig& result) {
  const LayerSizes sizes = parse_layer_sizes(file.layer, /*kv_heads_default=*/true);
  result.hidden_size = sizes.hidden_size;
  result.intermediate_size = sizes.intermediate_size;
  result.num_heads = sizes.num_heads;
  result.num_kv_heads = sizes.num_kv_heads;
  result.head_dim = sizes.head_dim;
  const JsonReader& top = file.top;
  result.vocab_size = file.layer.integer("vocab_size", 1, kMaxVocabSize);
  E31_CHECK(result.vocab_size == target.vocab_size, kCheckpoint, file.layer.source(), ": ",
            file.layer.name("vocab_size"), " is ", result.vocab_size, ", but the target has ", target.vocab_size,
            "; the draft was made for another model");
  result.target_hidden_size = top.integer_or("target_hidden_size", result.hidden_size, 1, kMaxHiddenSize);
  E31_CHECK(result.target_hidden_size == target.hidden_size, kCheckpoint, top.source(), ": ",
            top.has("target_hidden_size") ? "\"target_hidden_size\"" : "the hidden size", " is ",
            result.target_hidden_size, ", but the target has ", target.hidden_size,
            "; the draft was made for another model");
  const auto draft_vocab = [&](const char* key, int32_t fallback) {
    return top.integer_or(key, fallback, 1, result.vocab_size);
  };
  const int32_t truncated = draft_vocab("truncated_vocab_size", draft_vocab("draft_vocab_size", result.vocab_size));
  result.draft_vocab_size = draft_vocab("draft_vocab_size", truncated);
  E31_CHECK(result.draft_vocab_size == truncated, kCheckpoint, top.source(), ": \"draft_vocab_size\" is ",
            result.draft_vocab_size, " but \"truncated_vocab_size\" is ", truncated, "; keep one");
}

CaptureRequest capture_request(const DraftFile& file) {
  CaptureRequest request;
  request.speculators = file.speculators;
  // The bounds only keep arithmetic safe; the resolver judges the values.
  const auto read = [](const JsonReader& reader) { return reader.integers(kLayerIds, 64, -65536, 65536); };
  request.ids = read(file.top);
  if (file.eagle) {
    const auto inner = read(*file.eagle);
    E31_CHECK(!request.ids || !inner || *request.ids == *inner, kCheckpoint, file.top.source(), ": ",
              file.top.name(kLayerIds), " is ", file.top.value(kLayerIds), " but ", file.eagle->name(kLayerIds), " is ",
              file.eagle->value(kLayerIds), "; make them equal");
    if (!request.ids) request.ids = inner;
  }
  if (file.top.has("num_aux_hidden_states")) {
    request.count = file.top.integer("num_aux_hidden_states", 1, kMaxCaptured);
  }
  return request;
}

}  // namespace

DraftConfig parse_draft_config(const std::string& config_json, const DecoderConfig& target,
                               const DraftOverrides& overrides, const std::string& source) {
  const Json root = parse_json_object(config_json, source);
  const DraftFile file = open_file(root, source);
  refuse_unsupported_draft(file);
  const int32_t max_positions =
      file.layer.integer_or("max_position_embeddings", target.max_position_embeddings, 1, kMaxPositionEmbeddings);
  refuse_unsupported_options(file.top, max_positions);
  if (file.speculators) refuse_unsupported_options(file.layer, max_positions);

  DraftConfig result;
  parse_sizes(file, target, result);
  parse_switches(file, overrides.feedback, result);
  result.rms_norm_eps = static_cast<float>(file.layer.number_or("rms_norm_eps", 1e-6, 1e-30, 1.0));
  result.qkv_bias = file.layer.boolean_or("attention_bias", false);
  result.mlp_bias = file.layer.boolean_or("mlp_bias", false);
  result.fc_bias = file.top.boolean_or("bias", false);
  result.tie_word_embeddings = file.top.boolean_or("tie_word_embeddings", false);
  result.rope = parse_rope_config(file.layer, result.head_dim, max_positions);
  result.dtype = parse_config_dtype(file.top, parse_config_dtype(file.layer, target.dtype));
  const CaptureLayers capture = resolve_capture_layers(capture_request(file), target.num_layers, overrides, source);
  result.capture_layers = capture.layers;
  result.capture_rule = capture.rule;
  return result;
}

}  // namespace eagle31rt
