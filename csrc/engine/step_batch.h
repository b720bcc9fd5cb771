// The rows of one step and the results that come back for them.
//
// Requests are ordered so that the rows that need logits are contiguous: first those without drafts (one row each),
// then those with drafts (num_drafts + 1 rows each), then prompt chunks that end before the prompt does (no logits).
// Behind the rows from which tokens are drawn come the logits of prompt rows that want log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request_state.h"
#include "model/forward_batch.h"
#include "ops/verify_chain/verify_chain.h"
#include "spec/drafter.h"

namespace eagle31rt {

struct ScheduledRequest {
  RequestState* request;
  int32_t num_rows;        // tokens fed
  int32_t num_drafts = 0;  // of these, the last ones are drafts
  bool needs_logits = true;
  size_t proposal = 0;                  // index into the step's proposals, if num_drafts > 0
  int32_t first_logit_row = -1;         // where its emitted ids begin
  int32_t first_prompt_logit_row = -1;  // of prompt rows that want log-probabilities
  // Filled after verification.
  int32_t num_accepted = 0;               // -1: a row had no finite logit
  std::vector<TokenLogprobs> logprobs{};  // of each emitted id, if asked for
  std::string error{};                    // why the request fails by its own fault
};

// The law of the token at `position`.
SamplingRow sampling_row(const RequestState& request, int64_t position);
// P(draft i stands | those before it did) from unconditional rates.
std::vector<float> conditional_rates(std::span<const double> rates);

class StepBatch {
 public:
  // Orders the requests and packs their rows.
  void build(std::vector<ScheduledRequest> scheduled, const Proposals& proposals, int32_t page_size);

  const ForwardBatch& forward() const { return forward_; }
  std::span<const int32_t> logit_rows() const { return logit_rows_; }
  std::vector<ScheduledRequest>& scheduled() { return scheduled_; }
  // The drafts of an entry, and what is left of them: those from num_standing on are not to stand.
  std::span<const int32_t> drafts(const ScheduledRequest& entry) const;
  void refuse_drafts(const ScheduledRequest& entry, size_t num_standing);

  // Samples and verifies every logit row. logits [logit_rows, vocab_size]. rates: unconditional synthetic acceptance.
  void verify(const float* logits, int64_t vocab_size, VerifyMethod method, const Proposals& proposals,
              std::span<const int32_t> draft_to_target, std::span<const double> rates, ExecutionContext& context);

  // Of the last verification: from first_logit_row of a request its accepted drafts and the token after them.
  const int32_t* emitted() const { return emitted_.data(); }

 private:
  void add_rows(ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size);
  void add_prompt_logit_rows(ScheduledRequest& scheduled, int64_t first_row);
  void gather_draft_laws(const Proposals& proposals);
  void gather_rates(std::span<const double> rates);
  void verify_group(size_t first, size_t last, VerifyChainParams params, ExecutionContext& context);

  std::vector<ScheduledRequest> scheduled_;
  ForwardBatch forward_;
  std::vector<int32_t> logit_rows_;
  // One entry per row from which a token is drawn.
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> masked_begin_, masked_ids_;
  std::vector<int32_t> draft_ids_;  // the draft that the row was fed; -1 for the first row of a request
  std::vector<int32_t> emitted_;
  std::vector<float> draft_laws_, rates_;
};

}  // namespace eagle31rt
