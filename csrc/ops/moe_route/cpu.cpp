// A row a task; then one counting sort of all assignments. 8 of 128 experts take about 0.3 us a row, the logits alone
// (hidden 2048) 30 us.
#include "base/check.h"
#include "device/cpu/simd.h"
#include "ops/for_each_row.h"
#include "ops/moe_route/moe_route.h"

namespace eagle31rt::E31_ISA {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The `capacity` highest so far, best first. Ids must come in ascending order, so that of equals the earlier stays
// ahead.
template <int kCapacity>
struct BestList {
  float ranks[kCapacity];
  int32_t ids[kCapacity];
  int32_t capacity;
  int32_t size = 0;

  explicit BestList(int32_t limit) : capacity(limit) {}
  void offer(float rank, int32_t id) {
    if (size == capacity && !(rank > ranks[size - 1])) return;
    if (size < capacity) ++size;
    int32_t place = size - 1;
    for (; place > 0 && ranks[place - 1] < rank; --place) {
      ranks[place] = ranks[place - 1];
      ids[place] = ids[place - 1];
    }
    ranks[place] = rank;
    ids[place] = id;
  }
};

struct RowScores {
  alignas(64) float scores[kMaxExperts];  // whole groups of 16
  alignas(64) float ranks[kMaxExperts];
};

Lanes sigmoid(Lanes x) { return div(broadcast(1.0f), add(broadcast(1.0f), exp(sub(zero(), x)))); }

void score_row(const MoeRouteParams& p, const float* logits, RowScores* row) {
  for (int32_t e = 0; e < p.num_experts; e += 16) {
    const int count = p.num_experts - e < 16 ? p.num_experts - e : 16;
    const Lanes logit = load_partial(logits + e, count);
    const Lanes score = p.scoring == MoeScoring::kSigmoid ? sigmoid(logit) : logit;
    const Lanes rank = p.correction == nullptr ? score : add(score, load_partial(p.correction + e, count));
    store(row->scores + e, score);
    store(row->ranks + e, maximum(rank, broadcast(kMinusInfinity)));  // drops a NaN on its left
  }
}

void choose(const MoeRouteParams& p, const RowScores& row, BestList<kMaxExpertsPerToken>* best) {
  const int32_t group_size = p.num_experts / p.num_groups;
  bool allowed[kMaxExpertGroups] = {true};
  if (p.num_groups > 1) {
    BestList<kMaxExpertGroups> groups(p.num_groups_chosen);
    for (int32_t g = 0; g < p.num_groups; ++g) {
      BestList<2> two(group_size < 2 ? 1 : 2);
      for (int32_t e = g * group_size; e < (g + 1) * group_size; ++e) two.offer(row.ranks[e], e);
      groups.offer(group_size < 2 ? two.ranks[0] : two.ranks[0] + two.ranks[1], g);
      allowed[g] = false;
    }
    for (int32_t i = 0; i < groups.size; ++i) allowed[groups.ids[i]] = true;
  }
  for (int32_t e = 0; e < p.num_experts; ++e) {
    if (allowed[e / group_size]) best->offer(row.ranks[e], e);
  }
}

void sort_ascending(int32_t* ids, int32_t count) {
  for (int32_t i = 1; i < count; ++i) {
    const int32_t id = ids[i];
    int32_t place = i;
    for (; place > 0 && ids[place - 1] > id; --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
}

// Sum of exp(logit - largest) over all experts.
float mass_of_all(const MoeRouteParams& p, const RowScores& row, float largest) {
  Lanes sum = zero();
  for (int32_t e = 0; e < p.num_experts; e += 16) {
    const int count = p.num_experts - e < 16 ? p.num_experts - e : 16;
    const Lanes mass = exp(sub(load(row.scores + e), broadcast(largest)));
    sum = add(sum, select(first_lanes(count), mass, zero()));
  }
  return reduce_add(sum);
}

void weigh(const MoeRouteParams& p, const RowScores& row, float largest, const int32_t* ids, float* weights) {
  const bool sigmoid = p.scoring == MoeScoring::kSigmoid;
  float sum = 0.0f;
  for (int32_t j = 0; j < p.top_k; ++j) {
    const float score = row.scores[ids[j]];
    weights[j] = sigmoid ? score : numerics::exp_float(score - largest);
    sum += weights[j];
  }
  if (!p.normalise) sum = sigmoid ? 1.0f : mass_of_all(p, row, largest);
  if (sigmoid && p.normalise) sum += 1e-20f;
  for (int32_t j = 0; j < p.top_k; ++j) weights[j] = weights[j] / sum * p.scale;
}

void sort_assignments(const MoeRouteParams& p) {
  int32_t next[kMaxExperts] = {};
  const int64_t num_assignments = p.num_rows * p.top_k;
  for (int64_t i = 0; i < num_assignments; ++i) ++next[p.expert_ids[i]];
  int32_t begin = 0;
  for (int32_t e = 0; e < p.num_experts; ++e) {
    const int32_t count = next[e];
    p.expert_begin[e] = next[e] = begin;
    begin += count;
  }
  p.expert_begin[p.num_experts] = begin;
  for (int64_t i = 0; i < num_assignments; ++i) {
    const int32_t place = next[p.expert_ids[i]]++;
    p.places[i] = place;
    p.sorted_rows[place] = static_cast<int32_t>(i / p.top_k);
  }
}

}  // namespace

void moe_route(const MoeRouteParams& p, ExecutionContext& context) {
  E31_INVARIANT(p.num_experts <= kMaxExperts && p.top_k <= kMaxExpertsPerToken && p.num_groups <= kMaxExpertGroups);
  for_each_row(context, p.num_rows, 16 * p.num_experts, [&](int64_t r) {
    RowScores row;
    score_row(p, p.logits + r * p.num_experts, &row);
    BestList<kMaxExpertsPerToken> best(p.top_k);
    choose(p, row, &best);
    const float largest = best.ranks[0];
    sort_ascending(best.ids, best.size);
    __builtin_memcpy(p.expert_ids + r * p.top_k, best.ids, static_cast<size_t>(p.top_k) * sizeof(int32_t));
    weigh(p, row, largest, best.ids, p.weights + r * p.top_k);
  });
  sort_assignments(p);
}

}  // namespace eagle31rt::E31_ISA
