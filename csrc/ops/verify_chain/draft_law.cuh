// q of one verify row and the residual max(scale * p - q, 0) on the device (rules.h).
#pragma once

#include "ops/sample/row_law.cuh"
#include "ops/verify_chain/rules.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt::cuda {

// The law that drew the draft after one row, over target ids.
struct DraftLaw {
  RowLaw law;  // over draft ids
  RowLogits logits;
  const int32_t* to_draft;  // [target vocab_size] draft id of each target id or -1; null: identity
  int32_t vocab_size;       // of the draft
  int32_t point_id;         // >= 0: all mass on this target id
  double inverse_total;     // of law

  E31_DEVICE double probability(int32_t target_id) const {
    if (point_id >= 0) return target_id == point_id ? 1.0 : 0.0;
    const int32_t id = to_draft != nullptr ? to_draft[target_id] : target_id;
    if (id < 0 || id >= vocab_size) return 0.0;
    return rules::probability(weight_of(law, logits, id), inverse_total);
  }
};

E31_DEVICE RowLogits draft_logits(const VerifyChainParams& params, int64_t row) {
  return {params.draft_logits + row * params.draft_logits_stride, nullptr};
}

// `law` is that of the row's draft logits, if there are any.
E31_DEVICE DraftLaw make_draft_law(const VerifyChainParams& params, int64_t row, const RowLaw& law,
                                   const int32_t* to_draft) {
  DraftLaw q = {};
  q.point_id = params.draft_token_ids[row + 1];
  if (params.draft_logits == nullptr || !(params.target.rows[row].temperature > 0.0f)) return q;
  q.law = law;
  q.logits = draft_logits(params, row);
  q.to_draft = to_draft;
  q.vocab_size = static_cast<int32_t>(params.draft_vocab_size);
  q.inverse_total = rules::inverse_total(law.total);
  if (law.total > 0 && law.point_id < 0) q.point_id = -1;
  return q;
}

// Weights of the token after a refusal, for sum_segments and draw_id.
struct ResidualWeights {
  RowLaw p;
  RowLogits logits;
  double p_inverse_total;
  DraftLaw q;
  double scale;

  E31_DEVICE uint64_t operator()(int32_t id) const {
    const uint64_t weight = weight_of(p, logits, id);
    if (weight == 0) return 0;  // scale * 0 - q is not above 0
    const double share = rules::probability(weight, p_inverse_total);
    return rules::residual_weight(rules::residual(scale, share, q.probability(id)));
  }
};

}  // namespace eagle31rt::cuda
