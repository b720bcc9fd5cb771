#include "ops/verify_tree/reference_rules.h"

#include <algorithm>
#include <span>

#include "ops/sample/reference_law.h"
#include "ops/verify_tree/sibling_rules.h"
#include "ops/verify_tree/tree_walk.h"

namespace eagle31rt::reference {

namespace {

// Draft weights over target ids; empty if q is a point mass.
std::vector<uint64_t> draft_weights(const Tree& tree, int32_t row) {
  const VerifyTreeParams& params = tree.params;
  const int64_t draft_row = draft_row_of(tree, row);
  if (draft_row < 0) return {};
  const std::span<const float> logits(params.draft_logits + draft_row * params.draft_logits_stride,
                                      static_cast<size_t>(params.draft_vocab_size));
  const SamplingRow sampling = {params.target.rows[tree.first_row + row].temperature, 0, 1.0f, 0.0f, 0, 0};
  const std::vector<uint64_t> over_draft_ids = row_weights(logits, sampling, {});
  if (sum(over_draft_ids) == 0 || std::ranges::find(logits, __builtin_inff()) != logits.end()) return {};
  std::vector<uint64_t> weights(static_cast<size_t>(params.target.vocab_size), 0);
  for (size_t id = 0; id < over_draft_ids.size(); ++id) {
    weights[params.draft_to_target == nullptr ? id : static_cast<size_t>(params.draft_to_target[id])] =
        over_draft_ids[id];
  }
  return weights;
}

}  // namespace

SiblingRules sibling_rules(const VerifyTreeParams& params, int64_t request, int32_t row) {
  const Tree tree = tree_of(params, request);
  Siblings siblings;
  find_siblings(tree, row, &siblings);
  const std::vector<uint64_t> p = row_weights(params.target, tree.first_row + row);
  std::vector<uint64_t> q = siblings.count > 0 ? draft_weights(tree, row) : std::vector<uint64_t>{};
  std::vector<double> r;
  for (const uint64_t weight : p) r.push_back(rules::probability(weight, rules::inverse_total(sum(p))));
  SiblingRules result = {{}, {}, p};
  for (int32_t i = 0; i < siblings.count; ++i) {
    const int32_t x = tree.token_ids[siblings.rows[i]];
    const rules::Trial trial = {rules::inverse_total(sum(q)), x};
    const auto draft_share = [&](size_t id) {
      return rules::draft_share(trial, static_cast<int64_t>(id), q.empty() ? 0.0 : static_cast<double>(q[id]));
    };
    result.rows.push_back(siblings.rows[i]);
    result.acceptance.push_back(rules::acceptance_ratio(1.0, r[x], draft_share(x)));
    std::vector<uint64_t> rest(r.size());
    for (size_t id = 0; id < r.size(); ++id) {
      rest[id] = rules::residual_weight(rules::residual(1.0, r[id], draft_share(id)));
    }
    if (sum(rest) == 0) {
      result.emission_weights = p;
      return result;
    }
    for (size_t id = 0; id < r.size(); ++id) r[id] = rules::residual_share(rest[id], rules::inverse_total(sum(rest)));
    if (!q.empty()) q[x] = 0;
    result.emission_weights = rest;
  }
  return result;
}

}  // namespace eagle31rt::reference
