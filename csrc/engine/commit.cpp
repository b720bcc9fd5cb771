#include "engine/commit.h"

#include <algorithm>

#include "base/check.h"

namespace eagle31rt {

namespace {

// The end of a request after its newest token, if that token ends it.
FinishReason finish_after_newest(const RequestState& request) {
  const int32_t token = request.tokens.back();
  const bool may_stop = request.num_output_tokens() >= request.params.min_tokens;
  if (may_stop &&
      std::find(request.end_token_ids.begin(), request.end_token_ids.end(), token) != request.end_token_ids.end()) {
    return FinishReason::kStop;
  }
  return request.length() >= request.length_limit ? FinishReason::kLength : FinishReason::kNone;
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
    request.finish_reason = finish_after_newest(request);
  }
  output.finish_reason = request.finish_reason;
  if (request.finish_reason == FinishReason::kStop) output.stop_token_id = request.tokens.back();
  output.metrics = metrics;
}

std::string no_finite_logit(const RequestState& request) {
  return concat("no finite logit is left after position ", request.length() - 1,
                ": the model overflows for this prompt, or min_tokens holds back every id");
}

void commit_error(RequestState& request, const std::string& message, StepOutput& output) {
  request.finish_reason = FinishReason::kError;
  output.request_id = request.id;
  output.finish_reason = FinishReason::kError;
  output.error = message;
  output.metrics = request.metrics;
}

}  // namespace eagle31rt
