#include <cmath>
#include <limits>

#include "ops/ops.h"

namespace eagle31rt::reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double logit_of(const float* logits, int64_t id) { return std::isnan(logits[id]) ? -kInfinity : double{logits[id]}; }

double log_probability(const float* logits, int64_t vocab_size, int64_t token_id) {
  int64_t best = 0;
  for (int64_t id = 1; id < vocab_size; ++id) {
    if (logit_of(logits, id) > logit_of(logits, best)) best = id;
  }
  const double maximum = logit_of(logits, best);
  if (maximum == -kInfinity) return -kInfinity;
  if (maximum == kInfinity) return token_id == best ? 0 : -kInfinity;
  double sum = 0;
  for (int64_t id = 0; id < vocab_size; ++id) sum += std::exp(logit_of(logits, id) - maximum);
  return logit_of(logits, token_id) - maximum - std::log(sum);
}

}  // namespace

void token_logprobs(const TokenLogprobsParams& p) {
  for (int64_t r = 0; r < p.num_rows; ++r) {
    const float* logits = p.logits + r * p.logits_stride;
    const int64_t token_id = p.token_ids[r];
    p.logprobs[r] = -std::numeric_limits<float>::infinity();
    p.ranks[r] = 0;
    if (token_id < 0 || token_id >= p.vocab_size) continue;
    p.logprobs[r] = static_cast<float>(log_probability(logits, p.vocab_size, token_id));
    p.ranks[r] = 1;
    for (int64_t id = 0; id < p.vocab_size; ++id) {
      if (logit_of(logits, id) > logit_of(logits, token_id)) ++p.ranks[r];
    }
  }
}

}  // namespace eagle31rt::reference
