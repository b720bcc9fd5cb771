// The rows of one step and the results that come back for them.
//
// Requests are ordered so that the rows that need logits are contiguous, and trees come last: first prompt chunks that
// end before the prompt does (no logits), then requests without drafts (one row each), then those with drafts
// (num_drafts + 1 rows each, KV entries one after the other). Behind the rows from which tokens are drawn come the
// logits of prompt rows that want log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request_state.h"
#include "model/forward_batch.h"
#include "model/kv_storage.h"
#include "ops/verify_chain/verify_chain.h"
#include "ops/verify_tree/verify_tree.h"
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
  std::span<const int32_t> path_rows{};   // of a tree: the root and the accepted rows, then -1; empty: 0, 1, 2, ...
  std::vector<TokenLogprobs> logprobs{};  // of each emitted id, if asked for
  std::string error{};                    // why the request fails by its own fault

  // Row of the request that emitted token i of those that stand.
  int32_t path_row(int32_t i) const { return path_rows.empty() ? i : path_rows[static_cast<size_t>(i)]; }
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
  // The drafts of an entry.
  DraftTreeView drafts(const ScheduledRequest& entry, const Proposals& proposals) const;
  // The draft that this row of the entry was fed is not to stand.
  void refuse_draft(const ScheduledRequest& entry, int32_t row);

  // Samples and verifies every logit row. logits [logit_rows, vocab_size]. rates: unconditional synthetic acceptance.
  void verify(const float* logits, int64_t vocab_size, VerifyMethod method, const Proposals& proposals,
              std::span<const int32_t> draft_to_target, std::span<const double> rates, ExecutionContext& context);

  // Moves the KV entries of accepted paths to where those of a chain would be.
  void compact(const KvStorage& kv, ExecutionContext& context) const;

  // Of the last verification: from first_logit_row of a request its accepted drafts and the token after them.
  const int32_t* emitted() const { return emitted_.data(); }
  // The same by row: the token that follows each row of the paths that stand; -1 elsewhere.
  const int32_t* emitted_by_row() const { return emitted_by_row_.data(); }

 private:
  void add_rows(ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size);
  void add_prompt_logit_rows(ScheduledRequest& scheduled, int64_t first_row);
  void add_drafted_rows(const ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size);
  void gather_draft_laws(const Proposals& proposals);
  void gather_rates(std::span<const double> rates);
  std::vector<int32_t> relative_row_begin(size_t first, size_t last) const;
  void verify_chains(size_t first, size_t last, VerifyChainParams params, ExecutionContext& context);
  void verify_trees(size_t first, const VerifyChainParams& chains, ExecutionContext& context);
  void collect_by_row();

  std::vector<ScheduledRequest> scheduled_;
  ForwardBatch forward_;
  std::vector<int32_t> logit_rows_;
  // One entry per row from which a token is drawn.
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> masked_begin_, masked_ids_;
  std::vector<int32_t> draft_ids_;  // the draft that the row was fed; -1 for the first row of a request
  std::vector<int32_t> first_child_, next_sibling_;
  std::vector<int32_t> emitted_, emitted_by_row_, path_rows_;
  // Of the trees, which are the last entries.
  size_t first_tree_ = 0;
  std::vector<int32_t> num_accepted_;
  std::vector<float> draft_laws_, rates_;
};

}  // namespace eagle31rt
