// One request. `tokens` is the one authoritative state: its length is the committed length, and everything else
// follows.
//
//   position of tokens[i]          i
//   KV entries that are valid      [0, num_computed); the newest committed token has none yet and is fed next
//   decoding                       num_computed == tokens.size() - 1, and some token was put out
//   recomputing                    less than that: the prompt, or after a preemption prompt and output
//   output index of tokens[i]      i - prompt_length
//
// KV past num_computed is garbage (rejected drafts) and unreachable. A draft that follows the request has observed
// positions [drafts_from, num_observed); entries before first_draft_entry of its KV do not exist for it. It lags
// behind, num_observed < num_computed, while drafting is off: then a step does no draft work, and catches up before it
// drafts again (lazy_drafting.cpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "eagle31rt/engine.h"
#include "engine/text/request_text.h"
#include "engine/token_history.h"

namespace eagle31rt {

struct RequestState {
  int64_t id = 0;
  std::vector<int32_t> tokens;  // prompt and committed output
  int32_t prompt_length = 0;
  int32_t length_limit = 0;  // tokens.size() at which the request ends with "length"
  SamplingParams params;
  std::vector<int32_t> end_token_ids;          // ids that end the request
  std::vector<int32_t> delayed_token_ids;      // ids that min_tokens holds back
  std::vector<uint32_t> allowed_mask;          // of allowed_token_ids (row_processors.h); empty = all
  TokenHistory history;                        // kept if there are penalties
  std::vector<TokenLogprobs> prompt_logprobs;  // [prompt_length] until they are put out, if asked for
  int32_t num_speculative_tokens = 0;          // K of this request
  std::unique_ptr<RequestText> text;           // null: no text is made
  int32_t priority = 0;
  int64_t arrival = 0;  // ascending; no two are equal
  double timeout_seconds = 0;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  bool was_admitted = false;      // before now
  int32_t num_cached_tokens = 0;  // of the prompt, when it was first admitted
  double first_run_at = 0;        // StepOutput::first_run_at

  // While it runs.
  int32_t num_computed = 0;
  std::vector<int32_t> pages;
  int32_t first_owned_entry = 0;  // KV entries before it are there already, or the prefix cache's: never written
  int32_t num_published = 0;      // pages that are in the prefix cache
  int32_t slot = -1;              // the drafter's, or in the state of a device; -1 = none, or run by step_simple()
  bool is_drafting = false;       // the draft follows it
  int32_t drafts_from = 0;
  int32_t num_observed = 0;
  int32_t first_draft_entry = 1;
  int32_t num_draft_pages = 0;         // first pages whose draft entries the prefix cache knows of, or never will
  int32_t max_drafts_now = INT32_MAX;  // what the policy lets it draft in this step; 0 = off, -1 = it only follows
  FinishReason finish_reason = FinishReason::kNone;
  SpeculationMetrics metrics;

  // Who comes first runs first.
  std::pair<int32_t, int64_t> order() const { return {priority, arrival}; }
  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output_tokens() const { return length() - prompt_length; }
  bool decoding() const { return num_computed == length() - 1 && num_output_tokens() > 0; }
  bool is_end_token(int32_t token_id) const {
    return std::find(end_token_ids.begin(), end_token_ids.end(), token_id) != end_token_ids.end();
  }
  bool wants_prompt_logprobs() const { return params.num_prompt_logprobs >= 0 && num_output_tokens() == 0; }
  // Rows that must be run before it decodes. The last row of a prompt yields its first token; after a preemption the
  // newest token is fed by the first decode step, so that a round of drafts begins where it would have begun.
  int32_t num_prefill_rows() const {
    return num_output_tokens() > 0 ? length() - 1 - num_computed : length() - num_computed;
  }
  bool draft_lags() const { return is_drafting && num_observed < num_computed; }
  // The draft has a state to draft from: it observed something since it began, or will before it drafts.
  bool can_draft() const { return is_drafting && num_computed > drafts_from; }
  bool finished() const { return finish_reason != FinishReason::kNone; }
  // Drafts of one path that can still be emitted: the row after the last one yields a token as well.
  int32_t max_draft_depth() const { return length_limit - length() - 1; }
  // Drafts of a chain.
  int32_t num_draft_tokens_wanted() const {
    return std::min({num_speculative_tokens, max_draft_depth(), max_drafts_now});
  }
  // Drafts of a tree, of which only some are on a path.
  int32_t num_tree_drafts_wanted() const {
    return max_draft_depth() > 0 ? std::min(num_speculative_tokens, max_drafts_now) : 0;
  }
  // KV entries over the whole life: the last token is never fed.
  int32_t max_kv_entries() const { return length_limit - 1; }
  // KV entries for the next step with so many drafts. The entry of a draft has the index of the token that follows the
  // position (model/eagle_draft.h), so a draft is one entry ahead.
  int32_t kv_entries_for(int32_t num_drafts) const {
    return std::min(length() + num_drafts + (is_drafting ? 1 : 0), max_kv_entries());
  }
  // KV entries that another request may build on.
  int32_t num_shareable_entries() const { return std::min(num_computed, length() - 1); }

  // Gives up everything that is bound to its pages.
  void forget_computed() {
    num_computed = first_owned_entry = num_published = drafts_from = num_observed = num_draft_pages = 0;
    first_draft_entry = 1;
    is_drafting = false;
  }
};

}  // namespace eagle31rt
