// For cpu.cpp files only.
#pragma once

#include "ops/sample/selection.h"
#include "ops/verify_chain/rules.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt::E31_ISA {

// q: the law that drew the draft after one row, over target ids.
struct DraftLaw {
  RowLaw law;                // over draft ids
  const int32_t* to_target;  // [law.vocab_size] ascending, or null: identity
  int64_t point_id;          // >= 0: all mass on this target id
  double inverse_total;      // of law
};

// The first draft id whose target id is at least target_id.
inline int64_t lower_bound(const DraftLaw& q, int64_t target_id) {
  if (q.to_target == nullptr) return target_id < q.law.vocab_size ? target_id : q.law.vocab_size;
  int64_t low = 0, high = q.law.vocab_size;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (q.to_target[middle] < target_id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

inline DraftLaw make_draft_law(const VerifyChainParams& params, int64_t r, uint64_t* block_masses) {
  DraftLaw q = {};
  q.to_target = params.draft_to_target;
  q.point_id = params.draft_token_ids[r + 1];
  if (params.draft_logits == nullptr || !(params.target.rows[r].temperature > 0.0f)) return q;
  const SamplingRow row = {params.target.rows[r].temperature, 0, 1.0f, 0.0f, 0, 0};
  q.law = make_law(params.draft_logits + r * params.draft_logits_stride, params.draft_vocab_size, row, block_masses);
  q.inverse_total = rules::inverse_total(q.law.total);
  if (q.law.total > 0 && q.law.point_id < 0) q.point_id = -1;
  return q;
}

inline double draft_probability(const DraftLaw& q, int64_t target_id) {
  if (q.point_id >= 0) return target_id == q.point_id ? 1.0 : 0.0;
  const int64_t id = lower_bound(q, target_id);
  const bool drafted = id < q.law.vocab_size && (q.to_target == nullptr || q.to_target[id] == target_id);
  return drafted ? rules::probability(weight_at(q.law, id), q.inverse_total) : 0.0;
}

// q of target ids first_id .. first_id + count - 1; count <= kBlock.
inline void draft_probabilities(const DraftLaw& q, int64_t first_id, int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = 0.0;
  if (q.point_id >= 0) {
    if (q.point_id >= first_id && q.point_id < first_id + count) out[q.point_id - first_id] = 1.0;
    return;
  }
  // Draft ids of the block, at most `count` of them because the map ascends.
  const int64_t begin = lower_bound(q, first_id), end = lower_bound(q, first_id + count);
  const int64_t num_ids = end - begin < count ? end - begin : count;
  if (num_ids <= 0) return;
  uint64_t weights[kBlock];
  law_weights(q.law, begin, num_ids, weights);
  if (q.to_target == nullptr) {
    for (int64_t i = 0; i < num_ids; ++i) out[i] = rules::probability(weights[i], q.inverse_total);
    return;
  }
  for (int64_t i = 0; i < num_ids; ++i) {
    const int64_t place = q.to_target[begin + i] - first_id;
    if (place >= 0 && place < count) out[place] = rules::probability(weights[i], q.inverse_total);
  }
}

// The residual weights of one row (rules.h) for sum_blocks and draw_id.
struct ResidualWeights {
  const RowLaw& p;
  const DraftLaw& q;
  double scale;

  void operator()(int64_t first_id, int64_t count, uint64_t* out) const {
    double rest[kBlock];  // q, then the residual
    draft_probabilities(q, first_id, count, rest);
    law_weights(p, first_id, count, out);
    const double inverse = rules::inverse_total(p.total);
    for (int64_t i = 0; i < count; ++i) {
      rest[i] = rules::residual(scale, rules::probability(out[i], inverse), rest[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[i] = rules::residual_weight(rest[i]);
  }
};

}  // namespace eagle31rt::E31_ISA
