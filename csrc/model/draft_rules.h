// The rules that a draft must pass to be loaded for a target. One table and one set of checks serve the loader, which
// throws the first refusal, and the doctor (`eagle31rt check`), which lists all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "eagle31rt/status.h"

namespace eagle31rt {

// In the order of the table.
enum class Rule : uint8_t {
  kTargetConfig,
  kTargetTensors,
  kMaxModelLen,
  kDraftIsTarget,
  kDraftFormat,
  kArchitecture,
  kWholeModel,
  kParallelDrafting,
  kGraphOptions,
  kQuantised,
  kSlidingWindow,
  kLayerSizes,
  kVocabulary,
  kHiddenSize,
  kDraftVocabulary,
  kSwitches,
  kNormBeforeResidual,
  kFeedback,
  kDraftLength,
  kLayerIds,
  kRope,
  kContextLength,
  kDtype,
  kDraftFiles,
  kTensorNames,
  kSwitchTensors,
  kFusion,
  kDraftToTarget,
  kTargetToDraft,
  kEmbedding,
  kHead,
  kTensorShapes,
  kTensorsMissing,
  kTensorsUnused,
  kTokenizer,
};

constexpr uint64_t bit(Rule rule) { return uint64_t{1} << static_cast<int>(rule); }

struct RuleInfo {
  Rule rule;
  const char* id;      // stable: for --json, error messages and docs/doctor.md
  const char* check;   // what must hold
  const char* fix;     // what to do if it does not
  uint64_t needs = 0;  // bits of the rules without which this one says nothing
};

std::span<const RuleInfo> draft_rules();
const RuleInfo& rule_info(Rule rule);

// What happens to the outcome of a check. This one is the loader's: a refusal is thrown.
class Findings {
 public:
  virtual ~Findings() = default;
  // Runs `body`, which throws Error to refuse. Here the Error goes on to the caller with the rule's id at its end.
  // Returns whether the rule passed.
  virtual bool check(Rule rule, const std::function<void()>& body);
  // Something that loads and may still draft badly.
  virtual void note(Rule rule, const std::string& message);
  // A setting, its value and where that came from: a key of the file, an override or a default.
  virtual void resolved(const std::string& name, const std::string& value, const std::string& origin);
};

}  // namespace eagle31rt
