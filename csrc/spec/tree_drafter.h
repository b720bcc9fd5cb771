// Drafts one tree per request with an EAGLE head (spec/draft_tree_shape.h). A level costs one pass over the nodes that
// get children and one head for all of them.
//
// Nodes that are fed have provisional entries in the draft's KV cache, one after the other behind the observed ones;
// each sees the observed ones and its own ancestors. All nodes of a level have one position.
//
// Drafts of a static tree may be drawn from the head's law instead of being its most probable tokens: siblings one
// after the other, without those before them. Noise is that of a chain, with the place of the draft as its step.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "ops/sample/sample.h"
#include "spec/draft_tree_shape.h"
#include "spec/eagle_drafter.h"

namespace eagle31rt {

class TreeDrafter : public EagleDrafter {
 public:
  struct Config {
    int32_t num_slots;
    int32_t page_size;
    bool draw;  // static trees only
  };

  TreeDrafter(EagleDraft& draft, KvStorage& kv, const Config& config, DraftTreeShape shape)
      : EagleDrafter(draft, kv, config.num_slots, config.page_size), shape_(std::move(shape)), draw_(config.draw) {}

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
    int32_t first_row;          // of the proposals
    std::vector<Candidate> candidates;
    std::vector<Growing> level;
    int32_t num_fed = 0;
    std::vector<uint64_t> masks;     // [num_fed, mask words] of its provisional entries
    std::vector<int32_t> draft_ids;  // [num_tokens] of the places, if they are drawn; -1: none
  };

  void start(std::span<const DraftRequest> requests, Proposals& proposals);
  bool feed(std::span<const DraftRequest> requests, int32_t level, ExecutionContext& context);
  void feed_tree(const DraftRequest& request, Tree& tree, int32_t level);
  void rank_tokens(const float* logits, ExecutionContext& context);
  void draw_tokens(std::span<const DraftRequest> requests, int32_t level, const float* logits,
                   ExecutionContext& context);
  void draw_place(std::span<const DraftRequest> requests, size_t place, const float* logits, ExecutionContext& context);
  void grow_by_score(Tree& tree, int32_t level) const;
  void grow_by_place(Tree& tree, int32_t level) const;
  void build(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context);
  void move_laws(const Proposals& proposals, std::span<const int32_t> candidates);

  DraftTreeShape shape_;
  bool draw_;
  std::vector<Tree> trees_;
  int32_t mask_words_ = 1;
  int64_t num_rows_ = 0;  // of states_
  Scratch states_, next_states_, logits_;
  // [num_rows_, top_k] the most probable tokens behind each row.
  std::vector<int32_t> top_ids_;
  std::vector<float> top_values_, top_logprobs_;
  // Drawing one place of all trees that have it.
  Scratch laws_, place_logits_;  // laws_ [rows of the proposals, draft vocabulary] laws of the children of each row
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> masked_begin_, masked_ids_, drawn_ids_;
  std::vector<Tree*> drawing_;
  // Of a request on its way into batch_.
  std::vector<int32_t> fed_, depths_;
};

}  // namespace eagle31rt
