#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

double element(const void* base, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(base)[index];
  const uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

// KV indices that row j of request i sees, in logical order.
std::vector<int64_t> visible_entries(const PagedAttentionParams& p, int64_t i, int64_t j) {
  std::vector<int64_t> entries;
  for (int64_t t = p.kv_begin[i]; t < p.kv_length[i]; ++t) entries.push_back(t);
  const int64_t num_bits = p.ancestor_mask == nullptr ? j + 1 : int64_t{64} * p.mask_words;
  for (int64_t b = 0; b < num_bits; ++b) {
    const bool visible = p.ancestor_mask == nullptr ||
                         (p.ancestor_mask[(p.row_begin[i] + j) * p.mask_words + b / 64] >> (b % 64) & 1) != 0;
    if (visible) entries.push_back(p.kv_length[i] + b);
  }
  const auto window = static_cast<size_t>(p.sliding_window);
  if (window > 0 && entries.size() > window) entries.erase(entries.begin(), entries.end() - p.sliding_window);
  return entries;
}

void attend(const PagedAttentionParams& p, int64_t i, int64_t row, int64_t head) {
  const KvCacheView& cache = p.cache;
  const int64_t kv_head = head / (p.num_heads / cache.num_kv_heads), head_dim = cache.head_dim;
  const float* query = p.query + row * p.query_stride + head * head_dim;
  const auto page = [&](int64_t t) { return p.page_table[i * p.page_table_stride + t / cache.page_size]; };
  const std::vector<int64_t> entries = visible_entries(p, i, row - p.row_begin[i]);
  std::vector<double> scores, sum(head_dim, 0.0);
  double maximum = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t t : entries) {
    double score = 0;
    for (int64_t d = 0; d < head_dim; ++d) {
      score += query[d] * element(cache.key, cache.dtype, cache.key_index(page(t), kv_head, d, t % cache.page_size));
    }
    scores.push_back(score * p.scale);
    maximum = std::fmax(maximum, scores.back());
  }
  if (p.sinks != nullptr) {
    maximum = std::fmax(maximum, p.sinks[head]);
    total = std::exp(p.sinks[head] - maximum);
  }
  for (size_t n = 0; n < entries.size(); ++n) {
    const double weight = std::exp(scores[n] - maximum);
    const int64_t t = entries[n];
    total += weight;
    for (int64_t d = 0; d < head_dim; ++d) {
      sum[d] += weight * element(cache.value, cache.dtype, cache.value_index(page(t), kv_head, t % cache.page_size, d));
    }
  }
  float* output = p.output + (row * p.num_heads + head) * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) output[d] = static_cast<float>(sum[d] / total);
}

}  // namespace

void paged_attention(const PagedAttentionParams& p) {
  for (int64_t i = 0; i < p.num_requests; ++i) {
    for (int64_t row = p.row_begin[i]; row < p.row_begin[i + 1]; ++row) {
      for (int64_t head = 0; head < p.num_heads; ++head) attend(p, i, row, head);
    }
  }
}

}  // namespace eagle31rt::reference
