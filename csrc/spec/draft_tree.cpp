#include "spec/draft_tree.h"

#include <array>
#include <numeric>

#include "base/check.h"

namespace eagle31rt {

DraftTreeView chain_tree(std::span<const int32_t> token_ids) {
  E31_INVARIANT(token_ids.size() <= kMaxChainRows);
  using Column = std::array<int32_t, kMaxChainRows>;
  const auto ascending_from = [](int32_t first) {
    Column column{};
    std::iota(column.begin(), column.end(), first);
    return column;
  };
  static const Column parents = ascending_from(-1), depths = ascending_from(0), children = ascending_from(1);
  static const Column no_siblings = [] {
    Column column{};
    column.fill(-1);
    return column;
  }();
  return {.token_ids = token_ids,
          .parents = parents.data(),
          .first_child = children.data(),
          .next_sibling = no_siblings.data(),
          .depths = depths.data()};
}

DraftTreeView no_drafts() {
  static constexpr int32_t kRoot = -1;
  return chain_tree({&kRoot, 1});
}

}  // namespace eagle31rt
