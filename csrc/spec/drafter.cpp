#include "spec/drafter.h"

namespace eagle31rt {

DraftTreeView Proposals::tree(size_t request) const {
  const auto first = static_cast<size_t>(row_begin[request]);
  const auto rows = std::span(token_ids).subspan(first, static_cast<size_t>(num_drafts[request]) + 1);
  if (mask_words == 0) return chain_tree(rows);
  return {.token_ids = rows,
          .parents = &parents[first],
          .first_child = &first_child[first],
          .next_sibling = &next_sibling[first],
          .depths = &depths[first],
          .ancestor_mask = &ancestor_mask[first * static_cast<size_t>(mask_words)],
          .mask_words = mask_words};
}

}  // namespace eagle31rt
