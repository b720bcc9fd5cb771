// One request. `tokens` is the one authoritative state: its length is the committed length, and everything else
// follows.
//
//   position of tokens[i]          i
//   KV entries that are valid      [0, num_computed); the newest committed token has none yet and is fed next
//   decoding                       num_computed == tokens.size() - 1
//   output index of tokens[i]      i - prompt_length
//
// KV past num_computed is garbage (rejected drafts) and unreachable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
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
  int32_t num_computed = 0;
  std::vector<int32_t> pages;
  int32_t slot = -1;                  // the drafter's, or in the state of a device; -1 = none
  bool is_drafting = false;           // the draft has followed it from its first token
  std::unique_ptr<RequestText> text;  // null: no text is made
  FinishReason finish_reason = FinishReason::kNone;
  SpeculationMetrics metrics;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_output_tokens() const { return length() - prompt_length; }
  bool decoding() const { return num_computed == length() - 1 && num_output_tokens() > 0; }
  bool is_end_token(int32_t token_id) const {
    return std::find(end_token_ids.begin(), end_token_ids.end(), token_id) != end_token_ids.end();
  }
  bool wants_prompt_logprobs() const { return params.num_prompt_logprobs >= 0 && num_output_tokens() == 0; }
  bool finished() const { return finish_reason != FinishReason::kNone; }
  // Drafts that can still be emitted: the row after the last one yields a token as well.
  int32_t num_draft_tokens_wanted() const { return std::min(num_speculative_tokens, length_limit - length() - 1); }
  // KV entries over the whole life: the last token is never fed.
  int32_t max_kv_entries() const { return length_limit - 1; }
};

}  // namespace eagle31rt
