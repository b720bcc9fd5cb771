// Draft trees in flat form; a chain is the trivial one. All row numbers count from the tree's first row.
//
//   row 0      the root: the newest committed token, which is no draft
//   row r > 0  a draft; its parent stands before it, and the first m rows of a tree are a tree as well
//   links      first_child and next_sibling ascend; one that leads to no row of the tree ends its list
#pragma once

#include <cstdint>
#include <span>

namespace eagle31rt {

// Of one request.
struct DraftTreeView {
  std::span<const int32_t> token_ids;       // [num_drafts + 1]; the root's is not looked at
  const int32_t* parents = nullptr;         // [num_drafts + 1]; -1: of the root
  const int32_t* first_child = nullptr;     // [num_drafts + 1]
  const int32_t* next_sibling = nullptr;    // [num_drafts + 1]
  const int32_t* depths = nullptr;          // [num_drafts + 1]; 0 for the root
  const uint64_t* ancestor_mask = nullptr;  // [num_drafts + 1, mask_words] bit b: row b is the row or an ancestor;
                                            // null: a chain
  int32_t mask_words = 0;

  int32_t num_rows() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t child_of(int32_t row) const { return in_tree(row, first_child[row]); }
  int32_t sibling_of(int32_t row) const { return in_tree(row, next_sibling[row]); }
  // Without the rows from num_rows on.
  DraftTreeView first(int32_t num_rows) const {
    DraftTreeView part = *this;
    part.token_ids = token_ids.first(static_cast<size_t>(num_rows));
    return part;
  }

 private:
  int32_t in_tree(int32_t row, int32_t next) const { return next > row && next < num_rows() ? next : -1; }
};

constexpr int32_t kMaxChainRows = 65;

// token_ids: of the rows, the root's included; kMaxChainRows at most.
DraftTreeView chain_tree(std::span<const int32_t> token_ids);
// The root alone.
DraftTreeView no_drafts();

}  // namespace eagle31rt
