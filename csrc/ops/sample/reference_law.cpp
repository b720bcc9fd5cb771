#include "ops/sample/reference_law.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/numerics.h"
#include "ops/sample/law.h"

namespace eagle31rt::reference {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keeps the ids of `order` and clears the weights of all others.
void keep_only(const std::vector<int64_t>& order, std::vector<uint64_t>* weights) {
  std::vector<uint64_t> kept(weights->size(), 0);
  for (const int64_t id : order) kept[id] = (*weights)[id];
  *weights = kept;
}

size_t nucleus_size(const std::vector<int64_t>& order, const std::vector<uint64_t>& weights, float top_p) {
  uint64_t total = 0;
  for (const int64_t id : order) total += weights[id];
  const uint64_t wanted = law::nucleus_mass(top_p, total);
  uint64_t mass = 0;
  size_t size = 0;
  while (mass < wanted) mass += weights[order[size++]];
  return size;
}

}  // namespace

std::vector<uint64_t> row_weights(std::span<const float> logits, const SamplingRow& row,
                                  std::span<const int32_t> masked_ids) {
  std::vector<float> x(logits.begin(), logits.end());
  for (const int32_t id : masked_ids) {
    if (id >= 0 && id < std::ssize(x)) x[id] = -kInfinity;
  }
  for (float& value : x) value = std::isnan(value) ? -kInfinity : value;
  std::vector<uint64_t> weights(x.size(), 0);
  const auto best = std::max_element(x.begin(), x.end());  // the first of equals
  if (*best == -kInfinity) return weights;
  if (row.temperature == 0.0f || *best == kInfinity) {
    weights[best - x.begin()] = law::kUnitWeight;
    return weights;
  }
  std::vector<int64_t> order;
  for (size_t i = 0; i < x.size(); ++i) {
    weights[i] = law::weight_of(numerics::exp_float((x[i] - *best) / row.temperature));
    if (weights[i] >= law::min_weight(row.min_p)) order.push_back(static_cast<int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
  if (row.top_k > 0 && row.top_k < std::ssize(order)) order.resize(row.top_k);
  order.resize(nucleus_size(order, weights, row.top_p));
  keep_only(order, &weights);
  return weights;
}

std::vector<uint64_t> row_weights(const SampleParams& params, int64_t r) {
  std::span<const int32_t> masked;
  if (params.masked_begin != nullptr) {
    masked = {params.masked_ids + params.masked_begin[r], params.masked_ids + params.masked_begin[r + 1]};
  }
  const float* logits = params.logits + r * params.logits_stride;
  return row_weights({logits, static_cast<size_t>(params.vocab_size)}, params.rows[r], masked);
}

uint64_t sum(const std::vector<uint64_t>& weights) {
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

int32_t draw(const std::vector<uint64_t>& weights, uint64_t bits) {
  const uint64_t threshold = law::draw_threshold(bits, sum(weights));
  uint64_t cumulative = 0;
  for (size_t id = 0; id < weights.size(); ++id) {
    cumulative += weights[id];
    if (cumulative > threshold) return static_cast<int32_t>(id);
  }
  return -1;
}

}  // namespace eagle31rt::reference
