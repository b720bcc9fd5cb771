// The mixture-of-experts part of config.json, one function for each spelling.
#pragma once

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

// All throw Error(kCheckpoint) for numbers that contradict each other and Error(kUnsupported) for options that the
// graph does not have, each by key name.
MoeConfig parse_qwen3_experts(const JsonReader& config);
MoeConfig parse_gpt_oss_experts(const JsonReader& config);
// deepseek_v3 and kimi_k2.
MoeConfig parse_deepseek_experts(const JsonReader& config);

}  // namespace eagle31rt
