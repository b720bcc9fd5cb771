// The map of a draft's vocabulary, turned round: a residual asks for the draft id of every target id.
#pragma once

#include <cstdint>

#include "device/execution_context.h"

namespace eagle31rt::cuda {

struct DraftMap {
  const int32_t* draft_to_target;  // [draft_vocab_size]
  int64_t draft_vocab_size;
};

// target_to_draft [vocab_size] out: the draft id, or -1.
void invert_draft_map(const DraftMap& map, int32_t* target_to_draft, int64_t vocab_size, ExecutionContext& context);

}  // namespace eagle31rt::cuda
