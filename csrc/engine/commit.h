// The one place where tokens become output. A run of accepted drafts is committed token by token, as if the tokens had
// come one at a time: the first event (end id, stop string, end of the constraint, length) wins, and what lies after it
// was never emitted: it is neither counted nor kept, and leaves no text.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/request_state.h"

namespace eagle31rt {

// run: accepted drafts and the token after them. num_drafts: drafts that were verified (0 = a plain row).
// Appends to request.tokens, sets its finish_reason, updates its metrics and fills `output`.
void commit_run(RequestState& request, std::span<const int32_t> run, int32_t num_drafts, StepOutput& output);

// What to say of a row in which no id can be chosen.
std::string no_finite_logit(const RequestState& request);

// Ends the request without a token, for a fault of its own that must not reach its neighbours.
void commit_error(RequestState& request, const std::string& message, StepOutput& output);

}  // namespace eagle31rt
