#include "engine/commit.h"

#include <algorithm>

#include "base/check.h"
#include "engine/embedder_call.h"

namespace eagle31rt {

namespace {

// Shows the newest token to the constraint, which may end the request.
void advance_constraint(RequestState& request, StepOutput& output) {
  TokenConstraint& constraint = *request.params.constraint;
  const int32_t token = request.tokens.back();
  try {
    call_embedder("constraint", [&] {
      E31_CHECK(constraint.accept(token), kInvalidArgument, "it refuses token ", token, ", which its mask allows");
      if (constraint.is_finished()) request.finish_reason = FinishReason::kStop;
    });
  } catch (const Error& error) {
    request.finish_reason = FinishReason::kError;
    output.error = error.what();
  }
}

// Text of the newest token, and the end of the request with it, if it is that.
void apply_newest(RequestState& request, StepOutput& output) {
  const int32_t token = request.tokens.back();
  const SamplingParams& params = request.params;
  if (request.num_output_tokens() >= params.min_tokens && request.is_end_token(token)) {
    request.finish_reason = FinishReason::kStop;
    output.stop_token_id = token;
    if (request.text && params.include_stop_str_in_output) request.text->add(token, /*may_stop=*/false, output.text);
    return;
  }
  if (request.text) {
    // vLLM's rule: a stop string counts if its last byte comes with a token after the first min_tokens.
    const bool may_stop = request.num_output_tokens() > params.min_tokens;
    if (const std::optional<size_t> stop = request.text->add(token, may_stop, output.text)) {
      request.finish_reason = FinishReason::kStop;
      output.stop_string = params.stop[*stop];
      return;
    }
  }
  if (params.constraint != nullptr) advance_constraint(request, output);
  if (!request.finished() && request.length() >= request.length_limit) request.finish_reason = FinishReason::kLength;
}

}  // namespace

void commit_run(RequestState& request, std::span<const int32_t> run, int32_t num_drafts, StepOutput& output) {
  const size_t num_accepted = run.size() - 1;
  SpeculationMetrics& metrics = request.metrics;
  if (num_drafts > 0) {
    metrics.num_drafts += 1;
    metrics.num_draft_tokens += num_drafts;
  }
  output.request_id = request.id;
  for (size_t i = 0; i < run.size() && !request.finished(); ++i) {
    request.tokens.push_back(run[i]);
    output.new_token_ids.push_back(run[i]);
    if (i < num_accepted) {
      metrics.num_accepted_tokens += 1;
      metrics.num_accepted_tokens_per_position[i] += 1;
    }
    apply_newest(request, output);
  }
  if (request.finished() && request.text) request.text->finish(output.text);
  output.finish_reason = request.finish_reason;
  output.metrics = metrics;
}

std::string no_finite_logit(const RequestState& request) {
  return concat("no finite logit is left after position ", request.length() - 1,
                ": the model overflows for this prompt, or min_tokens and other bans hold back every id that has one");
}

void commit_error(RequestState& request, const std::string& message, StepOutput& output) {
  request.finish_reason = FinishReason::kError;
  output.request_id = request.id;
  output.finish_reason = FinishReason::kError;
  output.error = message;
  if (request.text) request.text->finish(output.text);
  output.metrics = request.metrics;
}

}  // namespace eagle31rt
