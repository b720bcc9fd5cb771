#include "ops/verify_chain/reference_rules.h"

#include "ops/sample/reference_law.h"
#include "ops/verify_chain/chain.h"
#include "ops/verify_chain/rules.h"

namespace eagle31rt::reference {

namespace {

std::vector<uint64_t> residual_weights(const Law& p, const Law& q, double scale) {
  std::vector<uint64_t> weights(p.size());
  for (size_t x = 0; x < p.size(); ++x) weights[x] = rules::residual_weight(rules::residual(scale, p[x], q[x]));
  return weights;
}

Law normalised(const std::vector<uint64_t>& weights) {
  const double inverse = rules::inverse_total(sum(weights));
  Law law;
  for (const uint64_t weight : weights) law.push_back(rules::probability(weight, inverse));
  return law;
}

bool is_point(const std::vector<uint64_t>& weights, const SamplingRow& row, std::span<const float> logits) {
  if (row.temperature == 0.0f || sum(weights) == 0) return true;
  for (const float logit : logits) {
    if (logit == __builtin_inff()) return true;
  }
  return false;
}

}  // namespace

Law target_law(const VerifyChainParams& params, int64_t r) { return normalised(row_weights(params.target, r)); }

Law draft_law(const VerifyChainParams& params, int64_t r) {
  Law law(params.target.vocab_size, 0.0);
  if (params.draft_logits != nullptr) {
    const SamplingRow row = {params.target.rows[r].temperature, 0, 1.0f, 0.0f, 0, 0};
    const std::span<const float> logits(params.draft_logits + r * params.draft_logits_stride, params.draft_vocab_size);
    const std::vector<uint64_t> weights = row_weights(logits, row, {});
    if (!is_point(weights, row, logits)) {
      const Law over_draft_ids = normalised(weights);
      for (int64_t id = 0; id < params.draft_vocab_size; ++id) {
        law[params.draft_to_target == nullptr ? id : params.draft_to_target[id]] = over_draft_ids[id];
      }
      return law;
    }
  }
  law[params.draft_token_ids[r + 1]] = 1.0;
  return law;
}

Acceptance chain_acceptance(const VerifyChainParams& params, int64_t request) {
  const int64_t begin = params.row_begin[request], num_drafts = num_valid_drafts(params, request);
  Acceptance result = {{}, {1.0}};
  for (int64_t r = begin; r < begin + num_drafts; ++r) {
    const int32_t draft = params.draft_token_ids[r + 1];
    const bool block = params.method == VerifyMethod::kBlock;
    const double ratio = rules::acceptance_ratio(block ? result.scales.back() : 1.0, target_law(params, r)[draft],
                                                 draft_law(params, r)[draft]);
    result.scales.push_back(block ? ratio : 1.0);
    if (block && r + 1 < begin + num_drafts) {
      const auto residual = residual_weights(target_law(params, r + 1), draft_law(params, r + 1), ratio);
      result.probabilities.push_back(rules::block_acceptance(ratio, sum(residual)));
    } else {
      result.probabilities.push_back(ratio);
    }
  }
  return result;
}

std::vector<uint64_t> emission_weights(const VerifyChainParams& params, int64_t request, int64_t num_accepted,
                                       double scale) {
  const int64_t r = params.row_begin[request] + num_accepted;
  if (num_accepted < num_valid_drafts(params, request)) {
    std::vector<uint64_t> residual = residual_weights(target_law(params, r), draft_law(params, r), scale);
    if (sum(residual) > 0) return residual;
  }
  return row_weights(params.target, r);
}

}  // namespace eagle31rt::reference
