#include "spec/draft_tree_shape.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "ops/build_tree/build_tree.h"
#include "ops/top_k/top_k.h"

namespace eagle31rt {

namespace {

std::string path_text(const std::vector<int32_t>& path) {
  std::string text;
  for (int32_t rank : path) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "(" + text + ")";
}

DraftTreeShape dynamic_shape(int32_t num_speculative_tokens, int32_t top_k, int32_t depth) {
  E31_CHECK(top_k <= kMaxTopK, kInvalidArgument, "tree_top_k is ", top_k, "; give 1 to ", kMaxTopK);
  E31_CHECK(depth == 0 || top_k > 1, kInvalidArgument, "tree_depth is ", depth,
            ", but trees need tree_top_k 2 or more; a chain is as deep as num_speculative_tokens says");
  E31_CHECK(depth <= num_speculative_tokens, kInvalidArgument, "tree_depth is ", depth, " and num_speculative_tokens ",
            num_speculative_tokens, "; a tree is at most as deep as it has drafts");
  DraftTreeShape shape{.top_k = std::max(top_k, 1), .depth = depth, .places = {}};
  if (shape.is_chain()) {
    shape.depth = num_speculative_tokens;
    return shape;
  }
  if (depth == 0) shape.depth = std::min(num_speculative_tokens, kDefaultTreeDepth);
  int32_t num_candidates = top_k;
  for (int32_t level = 1; level < shape.depth; ++level) {
    num_candidates += top_k * shape.num_expanded(level, num_speculative_tokens);
  }
  E31_CHECK(num_candidates <= kMaxTreeCandidates, kInvalidArgument, "tree_top_k ", top_k, " and tree_depth ",
            shape.depth, " make ", num_candidates, " candidates; at most ", kMaxTreeCandidates,
            " can be ranked, so lower one of them");
  return shape;
}

DraftTreeShape static_shape(int32_t num_speculative_tokens, std::vector<std::vector<int32_t>> paths) {
  std::ranges::sort(paths, [](const auto& a, const auto& b) {
    return std::pair(a.size(), std::cref(a).get()) < std::pair(b.size(), std::cref(b).get());
  });
  DraftTreeShape shape;
  std::map<std::vector<int32_t>, int32_t> place_of_path{{{}, -1}};
  for (const std::vector<int32_t>& path : paths) {
    E31_CHECK(!path.empty(), kInvalidArgument, "speculative_token_tree has an empty path; the root is there by itself");
    const int32_t rank = path.back();
    E31_CHECK(rank >= 0 && rank < kMaxTopK, kInvalidArgument, "speculative_token_tree has the path ", path_text(path),
              "; ranks are 0 to ", kMaxTopK - 1);
    const auto parent = place_of_path.find({path.begin(), path.end() - 1});
    E31_CHECK(parent != place_of_path.end(), kInvalidArgument, "speculative_token_tree has the path ", path_text(path),
              " but not the one that it continues");
    const auto place = static_cast<int32_t>(shape.places.size());
    E31_CHECK(place_of_path.emplace(path, place).second, kInvalidArgument, "speculative_token_tree has the path ",
              path_text(path), " twice");
    shape.places.push_back({parent->second, rank, static_cast<int32_t>(path.size())});
    shape.top_k = std::max(shape.top_k, rank + 1);
    shape.depth = static_cast<int32_t>(path.size());
  }
  E31_CHECK(num_speculative_tokens <= static_cast<int32_t>(paths.size()), kInvalidArgument,
            "speculative_token_tree has ", paths.size(), " paths and num_speculative_tokens is ",
            num_speculative_tokens, "; give as many, or fewer to use the first ones");
  return shape;
}

}  // namespace

DraftTreeShape make_draft_tree_shape(int32_t num_speculative_tokens, int32_t top_k, int32_t depth,
                                     const std::vector<std::vector<int32_t>>& paths) {
  E31_CHECK(top_k >= 0 && depth >= 0, kInvalidArgument, "tree_top_k is ", top_k, " and tree_depth ", depth,
            "; give positive numbers, or 0 for what is chosen if nothing is said");
  if (paths.empty()) return dynamic_shape(num_speculative_tokens, top_k, depth);
  E31_CHECK(top_k == 0 && depth == 0, kInvalidArgument,
            "tree_top_k and tree_depth make trees of their own; leave them out beside speculative_token_tree");
  return static_shape(num_speculative_tokens, paths);
}

int32_t DraftTreeShape::num_expanded(int32_t level, int32_t num_drafts) const {
  return level < depth ? std::clamp(num_drafts - level, 0, top_k) : 0;
}

int32_t DraftTreeShape::num_fed(int32_t num_drafts) const {
  int32_t count = 0;
  if (!is_static()) {
    for (int32_t level = 1; level < depth; ++level) count += num_expanded(level, num_drafts);
    return count;
  }
  // Children of one place follow each other.
  int32_t last_parent = -1;
  for (const Place& place : std::span(places).first(static_cast<size_t>(num_drafts))) {
    if (place.parent == last_parent) continue;
    last_parent = place.parent;
    count += 1;
  }
  return count;
}

}  // namespace eagle31rt
