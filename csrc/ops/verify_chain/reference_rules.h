// The rules of ratio-based verification over whole laws, coins left out: what reference.cpp compares with coins and
// what the tests integrate.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt::reference {

using Law = std::vector<double>;  // probability of each target id

Law target_law(const VerifyChainParams& params, int64_t r);
// q of the draft proposed after row r.
Law draft_law(const VerifyChainParams& params, int64_t r);

// Per draft of the request: kStandard the probability that it stands once those before it do, kBlock h_i; and in
// `scales` (one more entry) the ratio of each prefix, which its residual takes.
struct Acceptance {
  std::vector<double> probabilities;
  std::vector<double> scales;
};
Acceptance chain_acceptance(const VerifyChainParams& params, int64_t request);

// Integer weights of the token emitted after `num_accepted` drafts: the residual, or p if there is no draft left or the
// residual is 0.
std::vector<uint64_t> emission_weights(const VerifyChainParams& params, int64_t request, int64_t num_accepted,
                                       double scale);

}  // namespace eagle31rt::reference
