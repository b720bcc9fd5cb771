#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

double element(const LatentCacheView& cache, int64_t index) {
  if (cache.dtype == DType::kFloat32) return static_cast<const float*>(cache.data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(cache.data)[index];
  return cache.dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

// Places in the cache (of dim 0) of what row j of request i sees, in logical order.
std::vector<int64_t> visible_entries(const MlaAttentionParams& p, int64_t i, int64_t j) {
  std::vector<int64_t> places;
  const auto see = [&](int64_t t) {
    const int64_t page = p.page_table[i * p.page_table_stride + t / p.cache.page_size];
    places.push_back(p.cache.index(page, t % p.cache.page_size, 0));
  };
  for (int64_t t = p.kv_begin[i]; t < p.kv_length[i]; ++t) see(t);
  const int64_t num_bits = p.ancestor_mask == nullptr ? j + 1 : int64_t{64} * p.mask_words;
  for (int64_t b = 0; b < num_bits; ++b) {
    const bool visible = p.ancestor_mask == nullptr ||
                         (p.ancestor_mask[(p.row_begin[i] + j) * p.mask_words + b / 64] >> (b % 64) & 1) != 0;
    if (visible) see(p.kv_length[i] + b);
  }
  return places;
}

void attend(const MlaAttentionParams& p, const std::vector<int64_t>& places, int64_t row, int64_t head) {
  const int64_t entry_dim = p.cache.entry_dim(), latent_dim = p.cache.latent_dim;
  const float* query = p.query + row * p.query_stride + head * entry_dim;
  std::vector<double> scores, sum(static_cast<size_t>(latent_dim), 0.0);
  double maximum = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t place : places) {
    double score = 0;
    for (int64_t d = 0; d < entry_dim; ++d) score += query[d] * element(p.cache, place + d);
    scores.push_back(score * p.scale);
    maximum = std::fmax(maximum, scores.back());
  }
  for (size_t n = 0; n < places.size(); ++n) {
    const double weight = std::exp(scores[n] - maximum);
    total += weight;
    for (int64_t d = 0; d < latent_dim; ++d) sum[static_cast<size_t>(d)] += weight * element(p.cache, places[n] + d);
  }
  float* output = p.output + (row * p.num_heads + head) * latent_dim;
  for (int64_t d = 0; d < latent_dim; ++d) output[d] = static_cast<float>(sum[static_cast<size_t>(d)] / total);
}

}  // namespace

void mla_attention(const MlaAttentionParams& p) {
  for (int64_t i = 0; i < p.num_requests; ++i) {
    for (int64_t row = p.row_begin[i]; row < p.row_begin[i + 1]; ++row) {
      const std::vector<int64_t> places = visible_entries(p, i, row - p.row_begin[i]);
      for (int64_t head = 0; head < p.num_heads; ++head) attend(p, places, row, head);
    }
  }
}

}  // namespace eagle31rt::reference
