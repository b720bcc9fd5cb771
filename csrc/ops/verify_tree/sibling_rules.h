// The arithmetic of kStandard over the siblings of one row, beside verify_chain/rules.h. Static for the reason given in
// base/philox.h.
#pragma once

#include "base/host_device.h"
#include "ops/verify_chain/rules.h"

namespace eagle31rt::rules {

// An id's share of the residual weights after a refusal. They sum to 2^60 at most, so the conversion rounds (to nearest
// even, as every backend's does).
E31_HOST_DEVICE static inline double residual_share(uint64_t weight, double inverse) {
  return static_cast<double>(static_cast<int64_t>(weight)) * inverse;
}

// One child that is tried, and q as it is drawn from.
struct Trial {
  double inverse_draft;  // of the draft weights that no earlier sibling took; 0: q is a point mass on the child
  int32_t token_id;
};

// q(id); the draft weight (exact) of an id that an earlier sibling took is 0.
E31_HOST_DEVICE static inline double draft_share(const Trial& trial, int64_t id, double draft_weight) {
  if (trial.inverse_draft == 0.0) return id == trial.token_id ? 1.0 : 0.0;
  return draft_weight * trial.inverse_draft;
}

}  // namespace eagle31rt::rules
