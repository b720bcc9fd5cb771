// The checks of a draft, each under its rule (draft_rules.h), with the outcome in a sink: Findings for the loader,
// which throws, or the doctor's, which goes on. parse_draft_config and load_draft_weights run the same ones.
#pragma once

#include <string>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/draft_rules.h"

namespace eagle31rt {

// Fields of a refused rule keep what could be read, or their default.
DraftConfig parse_draft_config(const std::string& config_json, const DecoderConfig& target,
                               const DraftOverrides& overrides, const std::string& source, Findings& findings);

// Everything that headers, d2t and t2d tell; no weight is read.
void check_draft_weights(const Checkpoint& checkpoint, const DraftConfig& config, Findings& findings);

// Both may be one folder under two names. Its refusal is Error(kInvalidArgument).
void check_draft_is_not_target(const std::string& target_directory, const std::string& draft_directory,
                               Findings& findings);

}  // namespace eagle31rt
