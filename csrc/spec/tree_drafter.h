// Drafts one tree per request with an EAGLE head (spec/draft_tree_shape.h). A level costs one pass over the nodes that
// get children and one head for all of them.
//
// Nodes that are fed have provisional entries in the draft's KV cache, one after the other behind the observed ones;
// each sees the observed ones and its own ancestors. All nodes of a level have one position.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "spec/draft_tree_shape.h"
#include "spec/eagle_drafter.h"

namespace eagle31rt {

class TreeDrafter : public EagleDrafter {
 public:
  struct Config {
    int32_t num_slots;
    int32_t page_size;
  };

  TreeDrafter(EagleDraft& draft, KvStorage& kv, const Config& config, DraftTreeShape shape)
      : EagleDrafter(draft, kv, config.num_slots, config.page_size), shape_(std::move(shape)) {}

  void propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) override;

 private:
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  struct Candidate {
    float score;     // cumulative log-probability, or what stands for it in a static tree
    int32_t parent;  // candidate; -1: the root
    int32_t token_id;
  };
  // A node that gets children in this level.
  struct Growing {
    int32_t candidate;  // -1: the root
    int32_t row;        // of states_: of its parent before it is fed, then its own
    int32_t entry;      // which of the request's provisional entries is its own
  };
  // Of one request.
  struct Tree {
    int32_t num_tokens, depth;  // limits of this request
    std::vector<Candidate> candidates;
    std::vector<Growing> level;
    int32_t num_fed = 0;
    std::vector<uint64_t> masks;  // [num_fed, mask words] of its provisional entries
  };

  void start(std::span<const DraftRequest> requests);
  bool feed(std::span<const DraftRequest> requests, int32_t level, ExecutionContext& context);
  void feed_tree(const DraftRequest& request, Tree& tree, int32_t level);
  void rank_tokens(ExecutionContext& context);
  void grow_by_score(Tree& tree, int32_t level) const;
  void grow_by_place(Tree& tree, int32_t level) const;
  void build(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context);

  DraftTreeShape shape_;
  std::vector<Tree> trees_;
  int32_t mask_words_ = 1;
  int64_t num_rows_ = 0;  // of states_
  Scratch states_, next_states_, logits_;
  // [num_rows_, top_k] the most probable tokens behind each row.
  std::vector<int32_t> top_ids_;
  std::vector<float> top_values_, top_logprobs_;
  // Of a request on its way into batch_.
  std::vector<int32_t> fed_, depths_;
};

}  // namespace eagle31rt
