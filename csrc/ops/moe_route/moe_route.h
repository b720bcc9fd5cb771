// Router of a mixture of experts: which experts a token goes to, with what weight, and the tokens of the step by
// expert.
//
// score[e] = logit[e] (softmax) or 1 / (1 + exp(-logit[e])) (sigmoid), in float32 with the exp of base/numerics.h; the
// rank of an expert is score[e] + correction[e], a NaN being -inf. Chosen are the top_k experts of the highest rank,
// equal ranks by ascending id. With several groups (runs of num_experts / num_groups experts) only experts of the
// num_groups_chosen best groups count, a group being worth the sum of its two highest ranks, equal ones by ascending
// index.
//
// weight = scale * share, where share is
//   softmax:  exp(logit) / sum of exp over all experts, or over the chosen ones with `normalise`
//   sigmoid:  score, or score / (sum of the chosen scores + 1e-20) with `normalise`
//
// A row's experts come in ascending order of id, and that is the order in which moe_combine adds them.
#pragma once

#include <cstdint>

namespace eagle31rt {

constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxExpertsPerToken = 64;
constexpr int32_t kMaxExpertGroups = 64;

enum class MoeScoring : uint8_t { kSoftmax, kSigmoid };

struct MoeRouteParams {
  const float* logits;      // [num_rows, num_experts]
  const float* correction;  // [num_experts] or null; sigmoid only
  int32_t* expert_ids;      // [num_rows, top_k], ascending in a row
  float* weights;           // [num_rows, top_k]
  // Assignments (a row and one of its experts) sorted by expert; their order within an expert is not specified, and no
  // row's bits depend on it.
  int32_t* expert_begin;  // [num_experts + 1]: expert e has the places expert_begin[e] .. expert_begin[e + 1] - 1
  int32_t* sorted_rows;   // [num_rows * top_k]: the row of each place
  int32_t* places;        // [num_rows, top_k]: the place of each assignment
  int64_t num_rows;       // num_rows * top_k below 2^31
  int32_t num_experts;    // at most kMaxExperts
  int32_t top_k;          // at most kMaxExpertsPerToken and the experts of the chosen groups
  int32_t num_groups;     // divides num_experts; 1: no groups. More than one for sigmoid only, at most kMaxExpertGroups
  int32_t num_groups_chosen;
  MoeScoring scoring;
  bool normalise;
  float scale;
};

}  // namespace eagle31rt
