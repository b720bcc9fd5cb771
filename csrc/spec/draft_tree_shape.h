// Which trees an engine drafts.
//
//   dynamic  EAGLE-2: of each level the top_k best nodes (by cumulative log-probability) get top_k children each; of
//            all that was found the best num_speculative_tokens are verified
//   static   the same places in every step: a place is a path of ranks among the draft's most probable tokens, as in
//            vLLM's speculative_token_tree
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eagle31rt {

constexpr int32_t kMaxTreeDrafts = 64;
constexpr int32_t kDefaultTreeDepth = 8;

struct DraftTreeShape {
  struct Place {
    int32_t parent;  // place; -1: the root
    int32_t rank;    // among the most probable tokens behind the parent, from 0
    int32_t depth;   // 1 or more
  };

  int32_t top_k = 1;          // the most children of a node
  int32_t depth = 0;          // levels below the root
  std::vector<Place> places;  // static: by depth, then by ranks, so that the first m are a tree as well; else empty

  bool is_static() const { return !places.empty(); }
  bool is_chain() const { return top_k == 1 && !is_static(); }
  // Nodes that the draft is run over at most to find `num_drafts`; each has an entry in the draft's KV cache.
  int32_t num_fed(int32_t num_drafts) const;
  // Of a dynamic tree: nodes of level `level` (from 1) that get children, if `num_drafts` are wanted in all. One that
  // has num_drafts - level better ones beside it, and level - 1 ancestors, has no child among the best num_drafts.
  int32_t num_expanded(int32_t level, int32_t num_drafts) const;
};

// top_k: 0 or 1: chains. depth 0: kDefaultTreeDepth, num_speculative_tokens at most. paths: of a static tree, in any
// order. Throws Error(kInvalidArgument) naming the engine's setting that is wrong.
DraftTreeShape make_draft_tree_shape(int32_t num_speculative_tokens, int32_t top_k, int32_t depth,
                                     const std::vector<std::vector<int32_t>>& paths);

}  // namespace eagle31rt
