// The draft doctor: every rule of draft_rules.h over a target and a draft folder. It reads config.json, the headers of
// the safetensors files and the values of d2t and t2d, so that a model of a terabyte takes a second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/draft_rules.h"

namespace eagle31rt {

enum class FindingStatus : uint8_t {
  kPassed,
  kNote,     // loads, and may draft badly
  kFixable,  // refused as called, but passes with an option of its `options`
  kRefused,
  kSkipped,  // a rule that it needs is refused
};

const char* finding_status_name(FindingStatus status);  // "passed", "note", ...

// An option of the engine under which a refused rule passes.
struct DraftOption {
  std::string name;    // layer_id_convention, max_model_len
  std::string value;   // as text
  std::string result;  // what it resolves to: "capture_layers [2, 18, 33]"
};

struct Finding {
  Rule rule;
  FindingStatus status;
  std::optional<ErrorCode> code;     // of kFixable and kRefused: what loading throws
  std::string message;               // of kNote, kFixable and kRefused
  std::vector<DraftOption> options;  // of kFixable: each alone is enough
};

struct ResolvedValue {
  std::string name, value;
  std::string origin;  // a key of the file, "override" or "default"
};

struct DraftReport {
  std::vector<Finding> findings;  // in the order of the rules; a rule has several if it is refused for several reasons
  std::vector<ResolvedValue> resolved;
  bool loads = true;  // nothing is refused
};

// max_model_len: to serve; 0: the target's. num_speculative_tokens: 0 if not known yet. Faults of the folders become
// findings, none is thrown.
DraftReport examine_draft(const std::string& target_directory, const std::string& draft_directory,
                          const DraftOverrides& overrides = {}, int32_t max_model_len = 0,
                          int32_t num_speculative_tokens = 0);

}  // namespace eagle31rt
