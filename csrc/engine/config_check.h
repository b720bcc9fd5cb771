// Checks of what a user gives, done once at the edge.
#pragma once

#include "eagle31rt/config.h"
#include "ops/verify_chain/verify_chain.h"
#include "spec/draft_tree_shape.h"

namespace eagle31rt {

// Throws Error(kInvalidArgument | kUnsupported) naming the field. Everything that needs no model is checked here.
void check_engine_config(const EngineConfig& config);

// The trees that the config asks for, or chains. Throws Error(kInvalidArgument) naming the field.
DraftTreeShape draft_tree_shape(const EngineConfig& config);

VerifyMethod parse_verify_method(const std::string& name);

// Number of the GPU that "cuda" or "cuda:N" names; -1 for "cpu". Throws Error(kInvalidArgument).
int32_t parse_device(const std::string& name);

}  // namespace eagle31rt
