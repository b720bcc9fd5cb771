#include <algorithm>
#include <vector>

#include "ops/build_tree/tree_rows.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

void build_tree(const BuildTreeParams& params) {
  for (int64_t request = 0; request < params.num_requests; ++request) {
    const TreeShape shape = tree_shape(params, request);
    if (shape.num_rows == 0) {
      params.num_nodes[request] = 0;
      continue;
    }
    std::vector<uint64_t> keys(static_cast<size_t>(shape.num_candidates));
    candidate_keys(params, request, keys.data());
    std::sort(keys.begin(), keys.end());
    std::vector<int32_t> chosen;
    for (const uint64_t key : keys) {
      if (can_be_chosen(key) && std::ssize(chosen) < shape.num_rows - 1) {
        chosen.push_back(static_cast<int32_t>(static_cast<uint32_t>(key)));
      }
    }
    if (params.order == TreeOrder::kByCandidate) std::sort(chosen.begin(), chosen.end());
    write_tree_rows(params, request, chosen.data(), static_cast<int32_t>(chosen.size()));
  }
}

}  // namespace eagle31rt::reference
