#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "model/capture_layers.h"
#include "model/config.h"
#include "model/config_checks.h"
#include "model/draft_checks.h"
#include "model/draft_formats.h"
#include "model/draft_graph.h"
#include "model/json_reader.h"

namespace eagle31rt {
namespace {

constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";

// A draft file: switches at the top, layer sizes at the top (flat) or in transformer_layer_config (speculators), and
// eagle_config with a few more.
struct DraftFile {
  JsonReader top;
  JsonReader layer;
  std::optional<JsonReader> eagle;
  bool speculators = false;
  bool own_norm_output = false;
};

DraftFile open_file(const Json& root, const std::string& source, const DraftFormat& format) {
  const JsonReader top(root, source);
  if (!format.nested_layer) return {top, top, top.child("eagle_config"), false, format.own_norm_output};
  const auto kind = top.text("speculators_model_type");
  E31_CHECK(kind == "eagle3", kUnsupported, source, ": speculators_model_type ", quote(kind.value_or("")),
            " is not supported; only eagle3 is");
  const auto layer = top.child("transformer_layer_config");
  E31_CHECK(layer, kCheckpoint, source, " has speculators_model_type but no \"transformer_layer_config\"");
  return {top, *layer, top.child("eagle_config"), true, format.own_norm_output};
}

void refuse_architecture(const DraftFile& file) {
  struct Refused {
    std::string_view part;
    const char* why;
  };
  // Substrings of architectures[i].
  static constexpr Refused kArchitectures[] = {
      {"PEagle", "P-EAGLE (parallel drafting)"},
      {"Peagle", "P-EAGLE (parallel drafting)"},
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
}

void refuse_not_a_draft(const DraftFile& file) {
  const Json* num_layers = file.layer.find("num_hidden_layers");  // what is no number of layers is another rule's
  if (num_layers == nullptr || !num_layers->is_number() || num_layers->get<double>() <= 1) return;
  bool draft = file.speculators || file.eagle || file.top.has("draft_vocab_size") ||
               file.top.has("truncated_vocab_size") || file.top.has(kLayerIds);
  for (const std::string& name :
       file.top.texts("architectures", kMaxArchitectures).value_or(std::vector<std::string>{})) {
    draft = draft || name.find("Eagle") != name.npos;
  }
  E31_CHECK(draft, kCheckpoint, file.top.source(), " is not an EAGLE draft: it describes a whole model of ",
            describe(*num_layers), " layers; give a checkpoint made for this target");
}

// A boolean that must have one value to be supported.
void require_flag(const std::optional<JsonReader>& reader, const char* key, bool wanted, const char* why) {
  if (!reader || reader->boolean_or(key, wanted) == wanted) return;
  fail(ErrorCode::kUnsupported, reader->source(), ": ", reader->name(key), " is ", wanted ? "false" : "true", "; ", why,
       " is not supported");
}

void refuse_parallel_drafting(const DraftFile& file) {
  require_flag(file.top, "parallel_drafting", false, "P-EAGLE (parallel drafting)");
  for (const char* key : {"mask_token_id", "pard_token", "ptd_token_id"}) {
    E31_CHECK(!file.top.has(key), kUnsupported, file.top.source(), ": ", file.top.name(key), " is ",
              file.top.value(key), "; P-EAGLE (parallel drafting) is not supported");
  }
  if (!file.eagle) return;
  E31_CHECK(file.eagle->number_or("parallel_draft_step", 1, 0, 1e6) <= 1, kUnsupported, file.eagle->source(), ": ",
            file.eagle->name("parallel_draft_step"), " is ", file.eagle->value("parallel_draft_step"),
            "; parallel drafting is not supported");
}

// What rules of their own say.
constexpr const char* kOtherRules[] = {"quantization_config", "compression_config", "sliding_window"};

void refuse_graph_options(const DraftFile& file, DraftGraph graph, const DraftConfig& config, int32_t max_positions) {
  require_flag(file.eagle, "use_aux_hidden_state", true, "a draft fed by the last hidden state only (EAGLE-1 input)");
  require_flag(file.eagle, "use_input_layernorm_in_first_layer", true, "a draft without input_layernorm");
  require_flag(file.eagle, "use_last_layernorm", true, "a draft without a final norm");
  require_flag(file.eagle, "use_mtp_layernorm", false, "an extra MTP norm");
  require_flag(file.eagle, "eh_proj_before_attn", false, "a projection before the attention");
  if (file.eagle) {
    E31_CHECK(!file.eagle->has("layer_ids"), kUnsupported, file.eagle->source(), ": ", file.eagle->name("layer_ids"),
              " is not supported; use ", kLayerIds);
  }
  if (config.num_layers > 1) {
    require_flag(file.eagle, "next_layer_regular", true, "an embedding as input of every layer");
  }
  std::vector<const char*> understood(std::begin(kOtherRules), std::end(kOtherRules));
  const auto of_graph = understood_options(graph);
  understood.insert(understood.end(), of_graph.begin(), of_graph.end());
  refuse_unsupported_options(file.top, max_positions, understood);
  if (file.speculators) refuse_unsupported_options(file.layer, max_positions, understood);
}

struct Switch {
  bool value = false;
  std::string origin = "default";
};

// A switch under two names, which must agree if both are there.
Switch switch_of(const JsonReader& first, const char* key, const std::optional<JsonReader>& second, const char* alias) {
  Switch result;
  if (first.has(key)) result = {first.boolean_or(key, false), first.name(key)};
  if (!second || !second->has(alias)) return result;
  const bool other = second->boolean_or(alias, false);
  E31_CHECK(!first.has(key) || result.value == other, kCheckpoint, first.source(), ": ", first.name(key), " is ",
            first.value(key), " but ", second->name(alias), " is ", second->value(alias), "; make them equal");
  return {other, second->name(alias)};
}

void parse_switches(const DraftFile& file, DraftConfig& result, Findings& findings) {
  const JsonReader& top = file.top;
  const auto set = [&](const char* name, bool& field, const Switch& found) {
    field = found.value;
    findings.resolved(name, field ? "true" : "false", found.origin);
  };
  set("fc_norm", result.fc_norm, switch_of(top, "fc_norm", top, "use_aux_norm"));
  set("norm_before_fc", result.norm_before_fc, switch_of(top, "norm_before_fc", file.eagle, "norm_before_fc"));
  set("norm_output", result.norm_output, switch_of(top, "norm_output", file.eagle, "return_hidden_post_norm"));
  set("bias", result.fc_bias, switch_of(top, "bias", std::nullopt, ""));
  E31_CHECK(
      !(result.norm_before_fc && result.fc_norm), kCheckpoint, top.source(),
      ": norm_before_fc and fc_norm are both true; engines disagree on what that means, keep the one the draft was "
      "trained with");
}

void parse_norm_before_residual(const DraftFile& file, DraftConfig& result, Findings& findings) {
  // speculators' own default changed between versions, and vLLM's differs from it.
  E31_CHECK(
      !file.speculators || file.top.has("norm_before_residual"), kCheckpoint, file.top.source(),
      " lacks \"norm_before_residual\", whose default differs between versions of speculators; write true or false "
      "into the file");
  const Switch found = switch_of(file.top, "norm_before_residual", std::nullopt, "");
  result.norm_before_residual = found.value;
  findings.resolved("norm_before_residual", found.value ? "true" : "false", found.origin);
}

void parse_feedback(const DraftFile& file, const std::string& feedback, DraftConfig& result, Findings& findings) {
  E31_CHECK(feedback == "auto" || feedback == "pre" || feedback == "post", kInvalidArgument, "feedback is ",
            quote(feedback), "; give auto, pre or post");
  if (feedback == "auto" && result.norm_output && file.own_norm_output) {
    findings.note(Rule::kFeedback,
                  concat(file.top.source(),
                         ": norm_output is true in a file of SpecForge, whose own training feeds back "
                         "the state before the norm; if it was trained there without changes, pass feedback \"pre\""));
  }
  if (feedback != "auto") result.norm_output = feedback == "post";
  findings.resolved("feedback", result.norm_output ? "post" : "pre", feedback == "auto" ? "norm_output" : "override");
}

void parse_layers(const DraftFile& file, DraftGraph graph, const DecoderConfig& target, DraftConfig& result,
                  int32_t& max_positions) {
  max_positions = file.layer.integer_or("max_position_embeddings", max_positions, 1, kMaxPositionEmbeddings);
  result.max_position_embeddings = max_positions;
  parse_draft_layers(graph, file.layer, result);
  result.target_hidden_size = target.hidden_size;
  result.tie_word_embeddings = file.top.boolean_or("tie_word_embeddings", false);
}

void parse_vocabulary(const DraftFile& file, const DecoderConfig& target, DraftConfig& result) {
  result.vocab_size = file.layer.integer("vocab_size", 1, kMaxVocabSize);
  E31_CHECK(result.vocab_size == target.vocab_size, kCheckpoint, file.layer.source(), ": ",
            file.layer.name("vocab_size"), " is ", result.vocab_size, ", but the target has ", target.vocab_size,
            "; the draft was made for another model");
}

void parse_target_hidden_size(const DraftFile& file, const DecoderConfig& target, DraftConfig& result) {
  const JsonReader& top = file.top;
  result.target_hidden_size = top.integer_or("target_hidden_size", result.hidden_size, 1, kMaxHiddenSize);
  E31_CHECK(result.target_hidden_size == target.hidden_size, kCheckpoint, top.source(), ": ",
            top.has("target_hidden_size") ? "\"target_hidden_size\"" : "the hidden size", " is ",
            result.target_hidden_size, ", but the target has ", target.hidden_size,
            "; the draft was made for another model");
}

void parse_draft_vocabulary(const DraftFile& file, DraftConfig& result, Findings& findings) {
  const JsonReader& top = file.top;
  const auto draft_vocab = [&](const char* key, int32_t fallback) {
    return top.integer_or(key, fallback, 1, result.vocab_size);
  };
  const int32_t truncated = draft_vocab("truncated_vocab_size", draft_vocab("draft_vocab_size", result.vocab_size));
  result.draft_vocab_size = draft_vocab("draft_vocab_size", truncated);
  E31_CHECK(result.draft_vocab_size == truncated, kCheckpoint, top.source(), ": \"draft_vocab_size\" is ",
            result.draft_vocab_size, " but \"truncated_vocab_size\" is ", truncated, "; keep one");
  const char* keys[] = {"draft_vocab_size", "truncated_vocab_size"};
  const auto key = std::find_if(std::begin(keys), std::end(keys), [&](const char* name) { return top.has(name); });
  findings.resolved("draft_vocab_size", std::to_string(result.draft_vocab_size),
                    key == std::end(keys) ? "default: the target's" : top.name(*key));
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

void parse_capture_layers(const DraftFile& file, const DecoderConfig& target, const DraftOverrides& overrides,
                          DraftConfig& result, Findings& findings) {
  const CaptureLayers capture =
      resolve_capture_layers(capture_request(file), target.num_layers, overrides, file.top.source());
  result.capture_layers = capture.layers;
  result.capture_rule = capture.rule;
  findings.resolved("capture_layers", describe(Json(capture.layers)), capture.rule);
}

}  // namespace

void check_draft_is_not_target(const std::string& target_directory, const std::string& draft_directory,
                               Findings& findings) {
  findings.check(Rule::kDraftIsTarget, [&] {
    std::error_code ignored;  // a folder that is not there is another rule's
    E31_CHECK(!std::filesystem::equivalent(target_directory, draft_directory, ignored), kInvalidArgument,
              "the draft is the target itself (", draft_directory,
              "); give the folder of an EAGLE-3 or EAGLE-3.1 draft of this target");
  });
}

DraftConfig parse_draft_config(const std::string& config_json, const DecoderConfig& target,
                               const DraftOverrides& overrides, const std::string& source, Findings& findings) {
  DraftConfig result;
  Json root;
  std::optional<DraftFile> opened;
  const bool readable = findings.check(Rule::kDraftFormat, [&] {
    root = parse_json_object(config_json, source);
    const DraftFormat& format = recognise_draft_format(JsonReader(root, source));
    drop_unread_keys(root, format);
    opened = open_file(root, source, format);
    findings.resolved("format", format.name, format.recognised_by);
  });
  if (!readable) return result;
  const DraftFile& file = *opened;
  int32_t max_positions = target.max_position_embeddings;
  DraftGraph graph = DraftGraph::kLlama;
  findings.check(Rule::kArchitecture, [&] {
    refuse_architecture(file);
    graph = parse_draft_graph(file.top, file.layer);
  });
  findings.check(Rule::kWholeModel, [&] { refuse_not_a_draft(file); });
  findings.check(Rule::kParallelDrafting, [&] { refuse_parallel_drafting(file); });
  findings.check(Rule::kLayerSizes, [&] { parse_layers(file, graph, target, result, max_positions); });
  findings.check(Rule::kQuantised, [&] {
    refuse_quantised(file.top);
    refuse_quantised(file.layer);
  });
  findings.check(Rule::kGraphOptions, [&] { refuse_graph_options(file, graph, result, max_positions); });
  findings.check(Rule::kSlidingWindow, [&] {
    parse_draft_windows(file.layer, max_positions, result);
    if (!result.sliding_windows.empty()) {
      findings.resolved("sliding_windows", describe(Json(result.sliding_windows)), file.layer.name("layer_types"));
    }
  });
  findings.check(Rule::kVocabulary, [&] { parse_vocabulary(file, target, result); });
  findings.check(Rule::kHiddenSize, [&] { parse_target_hidden_size(file, target, result); });
  findings.check(Rule::kDraftVocabulary, [&] { parse_draft_vocabulary(file, result, findings); });
  findings.check(Rule::kSwitches, [&] { parse_switches(file, result, findings); });
  findings.check(Rule::kNormBeforeResidual, [&] { parse_norm_before_residual(file, result, findings); });
  findings.check(Rule::kFeedback, [&] { parse_feedback(file, overrides.feedback, result, findings); });
  findings.check(Rule::kRope, [&] { parse_draft_rope(file.layer, max_positions, result); });
  findings.check(Rule::kDtype,
                 [&] { result.dtype = parse_config_dtype(file.top, parse_config_dtype(file.layer, target.dtype)); });
  findings.check(Rule::kLayerIds, [&] { parse_capture_layers(file, target, overrides, result, findings); });
  return result;
}

DraftConfig parse_draft_config(const std::string& config_json, const DecoderConfig& target,
                               const DraftOverrides& overrides, const std::string& source) {
  Findings findings;
  return parse_draft_config(config_json, target, overrides, source, findings);
}

}  // namespace eagle31rt
