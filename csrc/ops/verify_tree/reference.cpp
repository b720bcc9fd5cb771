#include "ops/ops.h"
#include "ops/sample/reference_law.h"
#include "ops/verify_tree/reference_rules.h"
#include "ops/verify_tree/sibling_rules.h"
#include "ops/verify_tree/tree_walk.h"

namespace eagle31rt::reference {

namespace {

int32_t plain_sample(const Tree& tree, int32_t row) {
  return draw(row_weights(tree.params.target, tree.first_row + row), plain_bits(tree, row));
}

struct Step {
  int32_t child;  // -1: the walk ends, with `token`
  int32_t token;
};

Step step_by_equality(const Tree& tree, int32_t row) {
  const int32_t token = plain_sample(tree, row);
  return {token < 0 ? -1 : find_child(tree, row, token), token};
}

Step step_by_ratio(const Tree& tree, int64_t request, int32_t row) {
  const SiblingRules rules = sibling_rules(tree.params, request, row);
  for (size_t i = 0; i < rules.rows.size(); ++i) {
    if (rules::stands(child_coin(tree, row, rules.rows[i]), rules.acceptance[i])) return {rules.rows[i], -1};
  }
  return {-1, draw(rules.emission_weights, emission_bits(tree, row))};
}

}  // namespace

void verify_tree(const VerifyTreeParams& params) {
  for (int64_t request = 0; request < params.num_requests; ++request) {
    const Tree tree = tree_of(params, request);
    if (tree.num_rows == 0) {
      params.num_accepted[request] = -1;
      continue;
    }
    int32_t* path = params.path_rows + tree.first_row;
    int32_t num_accepted = 0;
    path[0] = 0;
    while (true) {
      const int32_t row = path[num_accepted];
      const Step step = params.method == TreeVerifyMethod::kEquality ? step_by_equality(tree, row)
                                                                     : step_by_ratio(tree, request, row);
      if (step.child < 0) {
        emit_path(tree, request, num_accepted, step.token);
        break;
      }
      path[++num_accepted] = step.child;
    }
  }
}

}  // namespace eagle31rt::reference
