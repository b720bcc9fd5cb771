#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/numerics.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

// Indices of `values`, the largest first, equal ones ascending.
std::vector<int32_t> ranking(const std::vector<float>& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

// Ranks of experts outside of the chosen groups become less than any: they are left out.
std::vector<bool> experts_of_chosen_groups(const MoeRouteParams& p, const std::vector<float>& ranks) {
  const auto group_size = static_cast<std::ptrdiff_t>(p.num_experts / p.num_groups);
  std::vector<float> worth;
  for (auto begin = ranks.begin(); begin != ranks.end(); begin += group_size) {
    std::vector<float> group(begin, begin + group_size);
    std::sort(group.rbegin(), group.rend());
    worth.push_back(group.size() > 1 ? group[0] + group[1] : group[0]);
  }
  const std::vector<int32_t> groups = ranking(worth);
  std::vector<bool> allowed(ranks.size(), false);
  for (int32_t i = 0; i < p.num_groups_chosen; ++i) {
    const auto begin = allowed.begin() + groups[static_cast<size_t>(i)] * group_size;
    std::fill(begin, begin + group_size, true);
  }
  return allowed;
}

void route_row(const MoeRouteParams& p, int64_t row) {
  const float* logits = p.logits + row * p.num_experts;
  const bool sigmoid = p.scoring == MoeScoring::kSigmoid;
  std::vector<float> scores(logits, logits + p.num_experts);
  // The choice must not depend on rounding, so the scores are float32 here too.
  if (sigmoid) {
    for (float& score : scores) score = 1.0f / (1.0f + numerics::exp_float(0.0f - score));
  }
  std::vector<float> ranks = scores;
  for (size_t e = 0; e < ranks.size(); ++e) {
    if (p.correction != nullptr) ranks[e] += p.correction[e];
    if (std::isnan(ranks[e])) ranks[e] = -std::numeric_limits<float>::infinity();
  }
  const std::vector<bool> allowed = experts_of_chosen_groups(p, ranks);
  std::vector<int32_t> chosen;
  for (const int32_t expert : ranking(ranks)) {
    if (allowed[static_cast<size_t>(expert)] && static_cast<int32_t>(chosen.size()) < p.top_k) chosen.push_back(expert);
  }
  std::sort(chosen.begin(), chosen.end());

  const double largest = sigmoid ? 0.0 : *std::max_element(ranks.begin(), ranks.end());
  const auto share = [&](int32_t e) {
    const double score = scores[static_cast<size_t>(e)];
    return sigmoid ? score : std::exp(score - largest);
  };
  double sum = sigmoid ? 1e-20 : 0.0;
  for (const int32_t e : chosen) sum += p.normalise ? share(e) : 0.0;
  for (int32_t e = 0; e < p.num_experts; ++e) sum += p.normalise || sigmoid ? 0.0 : share(e);
  for (size_t j = 0; j < chosen.size(); ++j) {
    const int64_t out = row * p.top_k + static_cast<int64_t>(j);
    p.expert_ids[out] = chosen[j];
    p.weights[out] = static_cast<float>(p.scale * share(chosen[j]) / (sigmoid && !p.normalise ? 1.0 : sum));
  }
}

}  // namespace

void moe_route(const MoeRouteParams& p) {
  for (int64_t row = 0; row < p.num_rows; ++row) route_row(p, row);
  int32_t place = 0;
  for (int32_t expert = 0; expert < p.num_experts; ++expert) {
    p.expert_begin[expert] = place;
    for (int64_t i = 0; i < p.num_rows * p.top_k; ++i) {
      if (p.expert_ids[i] != expert) continue;
      p.sorted_rows[place] = static_cast<int32_t>(i / p.top_k);
      p.places[i] = place++;
    }
  }
  p.expert_begin[p.num_experts] = place;
}

}  // namespace eagle31rt::reference
