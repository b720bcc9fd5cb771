// The speculation life-cycle, one interface for every way to draft.
//
//   begin    a request takes a slot; it will observe the position after num_observed others, and of these the draft KV
//            is there from first_visible_entry on
//   observe  true target features of verified positions and the token that follows each; always called for verified
//            positions of a drafting request, in order and without a gap, also when nothing will be proposed next
//   propose  drafts for the requests that want some; state written while proposing is provisional
//   accept   how many of the proposed drafts stood; provisional state is dropped, observe() then rewrites it from true
//            features (eagle31_spec 1.7; keeping drafted states costs 8-15 % acceptance)
//   release  the request is gone; its pages may be given away
//
// A drafter never decides what is emitted: verification does. So a wrong draft costs time, not correctness.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/execution_context.h"

namespace eagle31rt {

// Features of consecutive verified positions of one request.
struct Observation {
  int32_t slot;
  std::span<const int32_t> pages;        // KV pages of the request
  int32_t first_position;                // equals the number of positions observed so far
  const float* captured;                 // [next_tokens.size(), captured size]
  std::span<const int32_t> next_tokens;  // token at first_position + i + 1
  int32_t first_written_entry = 0;       // KV entries before it are there already, or made by others in this call
};

struct DraftRequest {
  int32_t slot;
  std::span<const int32_t> pages;
  int32_t num_tokens;  // 1 or more
  float temperature;   // for drafts that are drawn; 0 = most probable
  uint64_t seed;
  int64_t first_position;  // sequence position of the first drafted token
};

struct Proposals {
  int32_t max_tokens = 0;          // the largest num_tokens of the step
  std::vector<int32_t> token_ids;  // [num_requests, max_tokens] target ids, -1 where not asked for
  // Laws that drew them, over draft ids; only if drafts are drawn. Owned by the drafter, valid until the next propose.
  const float* logits = nullptr;  // [num_requests, max_tokens, draft_vocab_size]
  int64_t draft_vocab_size = 0;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual void begin(int32_t slot, int32_t num_observed = 0, int32_t first_visible_entry = 1) = 0;
  virtual void observe(std::span<const Observation> observations, ExecutionContext& context) = 0;
  virtual void propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) = 0;
  virtual void accept(int32_t slot, int32_t num_accepted) = 0;
  virtual void release(int32_t slot) = 0;
  // Positions whose true features were observed, by this request or by those whose pages it shares.
  virtual int32_t num_observed(int32_t slot) const = 0;
};

}  // namespace eagle31rt
