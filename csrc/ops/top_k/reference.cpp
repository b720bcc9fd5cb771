#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double log_sum(const float* logits, const std::vector<int32_t>& order) {
  double sum = 0;
  for (const int32_t id : order) sum += std::exp(static_cast<double>(logits[id]) - logits[order[0]]);
  return std::log(sum);
}

double log_probability(const float* logits, const std::vector<int32_t>& order, int32_t place) {
  const double best = logits[order[0]];
  if (best == kInfinity) return place == 0 ? 0.0 : -kInfinity;
  return logits[order[place]] - best - log_sum(logits, order);
}

}  // namespace

void top_k(const TopKParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    const float* logits = p.logits + r * p.logits_stride;
    std::vector<int32_t> order;
    for (int32_t id = 0; id < p.vocab_size; ++id) {
      if (logits[id] > -kInfinity) order.push_back(id);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (int32_t place = 0; place < p.k; ++place) {
      const bool taken = place < std::ssize(order);
      const int64_t out = r * p.k + place;
      p.values[out] = taken ? logits[order[place]] : -std::numeric_limits<float>::infinity();
      p.token_ids[out] = !taken ? -1 : p.draft_to_target == nullptr ? order[place] : p.draft_to_target[order[place]];
      if (p.log_probabilities == nullptr) continue;
      p.log_probabilities[out] = static_cast<float>(taken ? log_probability(logits, order, place) : -kInfinity);
    }
  }
}

}  // namespace eagle31rt::reference
