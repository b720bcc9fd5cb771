#include "ops/ops.h"
#include "ops/sample/reference_law.h"
#include "ops/verify_chain/chain.h"
#include "ops/verify_chain/reference_rules.h"
#include "ops/verify_chain/rules.h"

namespace eagle31rt::reference {

namespace {

int32_t plain_sample(const VerifyChainParams& params, int64_t r) {
  const SamplingRow& row = params.target.rows[r];
  return draw(row_weights(params.target, r), random_bits64(row.seed, row.position, NoisePurpose::kSample, 0));
}

void verify_equality(const VerifyChainParams& params, int64_t request) {
  const int64_t begin = params.row_begin[request], num_drafts = num_valid_drafts(params, request);
  int64_t n = 0;
  while (n < num_drafts && plain_sample(params, begin + n) == params.draft_token_ids[begin + n + 1]) ++n;
  emit_tokens(params, request, n, plain_sample(params, begin + n));
}

void verify_synthetic(const VerifyChainParams& params, int64_t request) {
  const int64_t begin = params.row_begin[request], num_drafts = num_valid_drafts(params, request);
  int64_t n = 0;
  while (n < num_drafts &&
         rules::stands(verify_coin(params, request, n, NoisePurpose::kSynthetic), params.acceptance_rates[begin + n])) {
    ++n;
  }
  emit_tokens(params, request, n, plain_sample(params, begin + n));
}

void verify_by_ratio(const VerifyChainParams& params, int64_t request) {
  const Acceptance acceptance = chain_acceptance(params, request);
  const int64_t num_drafts = static_cast<int64_t>(acceptance.probabilities.size());
  int64_t n = 0;
  for (int64_t i = 0; i < num_drafts; ++i) {
    const bool stands =
        rules::stands(verify_coin(params, request, i, NoisePurpose::kAccept), acceptance.probabilities[i]);
    if (stands) n = i + 1;                                           // kBlock: the last coin that holds
    if (!stands && params.method == VerifyMethod::kStandard) break;  // kStandard: all before the first that fails
  }
  const std::vector<uint64_t> weights = emission_weights(params, request, n, acceptance.scales[n]);
  emit_tokens(params, request, n, draw(weights, verify_bits(params, request, n, NoisePurpose::kResidual)));
}

}  // namespace

void verify_chain(const VerifyChainParams& params) {
  for (int64_t request = 0; request < params.num_requests; ++request) {
    if (is_padding(params, request)) {
      params.num_accepted[request] = -1;
    } else if (params.method == VerifyMethod::kEquality) {
      verify_equality(params, request);
    } else if (params.method == VerifyMethod::kSynthetic) {
      verify_synthetic(params, request);
    } else {
      verify_by_ratio(params, request);
    }
  }
}

}  // namespace eagle31rt::reference
