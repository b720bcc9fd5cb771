#include "model/doctor.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "model/config_checks.h"
#include "model/draft_checks.h"
#include "model/weights.h"

namespace eagle31rt {
namespace {

// Keeps every outcome. A rule whose needs are refused is skipped, and so are those that need it.
class FindingCollector final : public Findings {
 public:
  bool check(Rule rule, const std::function<void()>& body) override {
    if (is_blocked(rule)) {
      add({rule, FindingStatus::kSkipped, {}, {}, {}});
      failed_ |= bit(rule);
      return false;
    }
    try {
      body();
    } catch (const Error& error) {
      add({rule, FindingStatus::kRefused, error.code(), error.what(), {}});
      failed_ |= bit(rule);
      return false;
    }
    add({rule, FindingStatus::kPassed, {}, {}, {}});
    return true;
  }

  void note(Rule rule, const std::string& message) override { add({rule, FindingStatus::kNote, {}, message, {}}); }

  void resolved(const std::string& name, const std::string& value, const std::string& origin) override {
    resolved_.push_back({name, value, origin});
  }

  bool is_refused(Rule rule) const {
    return (failed_ & bit(rule)) != 0 && of(rule).front().status == FindingStatus::kRefused;
  }
  bool has_passed(Rule rule) const { return (failed_ & bit(rule)) == 0 && !of(rule).empty(); }

  // The refusals of the rule can be had by one of these options; rules that need it are checked all the same.
  void set_fixable(Rule rule, std::vector<DraftOption> options) {
    for (Finding& finding : of(rule)) {
      finding.status = FindingStatus::kFixable;
      finding.options = options;
    }
    failed_ &= ~bit(rule);
  }

  DraftReport report() const {
    DraftReport result;
    result.resolved = resolved_;
    for (const RuleInfo& info : draft_rules()) {
      const std::vector<Finding>& found = of(info.rule);
      if (found.empty()) result.findings.push_back({info.rule, FindingStatus::kSkipped, {}, {}, {}});
      for (const Finding& finding : found) {
        const bool refused = finding.status == FindingStatus::kRefused || finding.status == FindingStatus::kFixable;
        if (refused || finding.status == found.front().status) result.findings.push_back(finding);
        result.loads = result.loads && !refused;
      }
    }
    return result;
  }

 private:
  std::vector<Finding>& of(Rule rule) { return outcomes_[static_cast<size_t>(rule)]; }
  const std::vector<Finding>& of(Rule rule) const { return outcomes_[static_cast<size_t>(rule)]; }

  // Whether something that the rule needs, or that this in turn needs, is refused. A rule that was never reached for
  // that reason is in no set.
  bool is_blocked(Rule rule) const {
    const uint64_t needs = rule_info(rule).needs;
    if ((needs & failed_) != 0) return true;
    return std::ranges::any_of(
        draft_rules(), [&](const RuleInfo& other) { return (needs & bit(other.rule)) != 0 && is_blocked(other.rule); });
  }

  // Worst first, so that the first status is the rule's; a rule passed or skipped twice counts once.
  void add(Finding finding) {
    static constexpr auto rank = [](FindingStatus status) {
      switch (status) {
        case FindingStatus::kFixable:
        case FindingStatus::kRefused:
          return 0;
        case FindingStatus::kNote:
          return 1;
        case FindingStatus::kSkipped:
          return 2;
        case FindingStatus::kPassed:
          return 3;
      }
      return 3;
    };
    std::vector<Finding>& found = of(finding.rule);
    auto place = found.begin();
    while (place != found.end() && rank(place->status) <= rank(finding.status)) {
      if (place->status == finding.status && place->message == finding.message) return;
      ++place;
    }
    found.insert(place, std::move(finding));
  }

  std::array<std::vector<Finding>, static_cast<size_t>(Rule::kTokenizer) + 1> outcomes_;
  std::vector<ResolvedValue> resolved_;
  uint64_t failed_ = 0;
};

std::string tensor_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const TensorEntry& tensor : checkpoint.tensors()) bytes += tensor.num_bytes;
  return std::to_string(bytes);
}

DecoderConfig examine_target(const std::string& directory, FindingCollector& findings) {
  DecoderConfig config;
  findings.check(Rule::kTargetConfig, [&] {
    config = read_decoder_config(directory);
    findings.resolved("target_model_type", config.model_type, "\"model_type\"");
    findings.resolved("target_num_layers", std::to_string(config.num_layers), "\"num_hidden_layers\"");
  });
  findings.check(Rule::kTargetTensors, [&] {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    check_decoder_weights(checkpoint, config);
    findings.resolved("target_bytes", tensor_bytes(checkpoint), "headers");
  });
  return config;
}

int32_t examine_length(int32_t max_model_len, const DecoderConfig& target, FindingCollector& findings) {
  int32_t length = 0;
  findings.check(Rule::kMaxModelLen, [&] {
    length = serving_length(max_model_len, target);
    findings.resolved("max_model_len", std::to_string(length), max_model_len > 0 ? "override" : "the target's");
  });
  if (findings.is_refused(Rule::kMaxModelLen) && target.max_position_embeddings >= kMinModelLen) {
    findings.set_fixable(Rule::kMaxModelLen, {{"max_model_len", std::to_string(target.max_position_embeddings), ""}});
    length = target.max_position_embeddings;
  }
  return length;
}

// Ids that can be read in two ways: the options are the readings that pass, and the first goes on to the next rules.
void try_conventions(const std::string& text, const DecoderConfig& target, DraftOverrides overrides,
                     const std::string& source, DraftConfig& config, FindingCollector& findings) {
  if (!findings.is_refused(Rule::kLayerIds) || !overrides.layer_id_convention.empty()) return;
  std::vector<DraftOption> options;
  for (const char* convention : {"residual_index", "layer_output"}) {
    FindingCollector trial;
    overrides.layer_id_convention = convention;
    trial.check(Rule::kTargetConfig, [] {});
    const DraftConfig read = parse_draft_config(text, target, overrides, source, trial);
    if (!trial.has_passed(Rule::kLayerIds)) continue;
    if (options.empty()) config.capture_layers = read.capture_layers;
    options.push_back({"layer_id_convention", convention, "capture_layers " + describe(Json(read.capture_layers))});
  }
  if (!options.empty()) findings.set_fixable(Rule::kLayerIds, std::move(options));
}

std::string rope_text(const RopeConfig& rope) {
  static constexpr const char* kNames[] = {"default", "linear", "llama3", "yarn"};
  return concat(kNames[static_cast<int>(rope.kind)], ", theta ", rope.theta, ", factor ", rope.factor);
}

// What loads and may cost acceptance.
void add_notes(const DraftConfig& config, const DecoderConfig& target, int32_t length, FindingCollector& findings) {
  if (findings.has_passed(Rule::kRope)) {
    const std::string own = rope_text(config.rope), other = rope_text(target.rope);
    findings.resolved("rope", own, "the draft's config.json");
    if (own != other) {
      findings.note(Rule::kRope, concat("the draft's rope is ", own, ", the target's ", other,
                                        "; right if the draft was trained so, wrong if an export lost rope_scaling or "
                                        "rope_theta (speculators did before June 2026)"));
    }
  }
  findings.check(Rule::kContextLength, [&] {
    if (config.max_position_embeddings >= length) return;
    findings.note(
        Rule::kContextLength,
        concat("the draft's max_position_embeddings is ", config.max_position_embeddings, ", below the ", length,
               " positions to serve; ids stay right, but it was not trained beyond and fewer drafts will "
               "stand there"));
  });
}

// What a file of speculators says of its own use; only people read it, so a form that is not understood is left alone.
void examine_proposal(const std::string& text, int32_t num_speculative_tokens, FindingCollector& findings) {
  findings.check(Rule::kDraftLength, [&] {
    const Json root = parse_json_object(text, "config.json");
    const auto member = [](const Json& value, const char* key) {
      return value.is_object() ? value.value(key, Json()) : Json();
    };
    const Json own = member(root, "speculators_config");
    const Json verifier = member(member(own, "verifier"), "name_or_path");
    if (verifier.is_string()) findings.resolved("made_for", describe(verifier), "\"speculators_config.verifier\"");
    const Json methods = member(own, "proposal_methods");
    const Json length = methods.is_array() && !methods.empty() ? member(methods[0], "speculative_tokens") : Json();
    if (!length.is_number_integer()) return;
    findings.resolved("proposed_length", describe(length), "\"speculators_config.proposal_methods\"");
    if (num_speculative_tokens <= length.get<int64_t>()) return;
    findings.note(Rule::kDraftLength, concat("num_speculative_tokens is ", num_speculative_tokens,
                                             ", and the draft's own config proposes ", describe(length)));
  });
}

}  // namespace

const char* finding_status_name(FindingStatus status) {
  switch (status) {
    case FindingStatus::kPassed:
      return "passed";
    case FindingStatus::kNote:
      return "note";
    case FindingStatus::kFixable:
      return "fixable";
    case FindingStatus::kRefused:
      return "refused";
    case FindingStatus::kSkipped:
      return "skipped";
  }
  return "skipped";
}

DraftReport examine_draft(const std::string& target_directory, const std::string& draft_directory,
                          const DraftOverrides& overrides, int32_t max_model_len, int32_t num_speculative_tokens) {
  FindingCollector findings;
  const DecoderConfig target = examine_target(target_directory, findings);
  const int32_t length = examine_length(max_model_len, target, findings);
  check_draft_is_not_target(target_directory, draft_directory, findings);
  std::string text;
  DraftConfig config;
  const std::string path = draft_directory + "/config.json";
  if (findings.check(Rule::kDraftFormat, [&] { text = read_text_file(path); })) {
    config = parse_draft_config(text, target, overrides, path, findings);
    try_conventions(text, target, overrides, path, config, findings);
    add_notes(config, target, length, findings);
    examine_proposal(text, num_speculative_tokens, findings);
  }
  std::optional<Checkpoint> checkpoint;
  findings.check(Rule::kDraftFiles, [&] { checkpoint = Checkpoint::open(draft_directory); });
  if (checkpoint) {
    check_draft_weights(*checkpoint, config, findings);
    findings.resolved("draft_bytes", tensor_bytes(*checkpoint), "headers");
  }
  return findings.report();
}

}  // namespace eagle31rt
