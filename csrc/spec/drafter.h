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
#include "spec/draft_tree.h"

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
  int32_t num_tokens;  // drafts at most, 1 or more; for a chain: exactly so many
  int32_t max_depth;   // drafts on one path that can still be emitted, 1 or more; a chain has no more tokens
  float temperature;   // for drafts that are drawn; 0 = most probable
  uint64_t seed;
  int64_t first_position;  // sequence position of the first drafted token
};

// One tree for each request.
struct Proposals {
  std::vector<int32_t> row_begin{0};  // [num_requests + 1] first row of each tree
  std::vector<int32_t> num_drafts;    // [num_requests]; rows behind 1 + num_drafts of a tree are not used
  std::vector<int32_t> token_ids;     // [num_rows] target ids
  std::vector<int32_t> parents, first_child, next_sibling, depths;  // [num_rows]; chains have none
  std::vector<uint64_t> ancestor_mask;                              // [num_rows, mask_words]; chains have none
  int32_t mask_words = 0;                                           // 0: all trees are chains
  // Laws that drew the children of each row, over draft ids; only if drafts are drawn. Owned by the drafter, valid
  // until the next propose.
  const float* logits = nullptr;  // [num_rows, draft_vocab_size]
  int64_t draft_vocab_size = 0;

  DraftTreeView tree(size_t request) const;
  int32_t first_row(size_t request) const { return row_begin[request]; }
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
