// One row per task, two passes: the k best so far in a sorted list, which 16 logits enter at all only if one of them
// beats its last; then the weights, for the log-probabilities.
#include "base/check.h"
#include "device/execution_context.h"
#include "ops/sample/row_law.h"
#include "ops/top_k/log_probability.h"
#include "ops/top_k/top_k.h"

namespace eagle31rt::E31_ISA {

namespace {

struct BestList {
  float logits[kMaxTopK];
  int32_t ids[kMaxTopK];
  int32_t capacity;
  int32_t size = 0;

  float bar() const { return size < capacity ? -kInfinity : logits[size - 1]; }  // to be beaten

  // Ids must come in ascending order, so that of equal logits the earlier stays ahead.
  void offer(float logit, int32_t id) {
    if (!(logit > bar())) return;
    if (size < capacity) ++size;
    int32_t place = size - 1;
    for (; place > 0 && logits[place - 1] < logit; --place) {
      logits[place] = logits[place - 1];
      ids[place] = ids[place - 1];
    }
    logits[place] = logit;
    ids[place] = id;
  }
};

void find_best(const float* logits, int64_t vocab_size, BestList* best) {
  for (int64_t begin = 0; begin < vocab_size; begin += 16) {
    const int64_t count = vocab_size - begin < 16 ? vocab_size - begin : 16;
    // maximum() drops a NaN on its left.
    const Lanes lanes = maximum(load_logits(logits + begin, count), broadcast(-kInfinity));
    if (!(reduce_max(lanes) > best->bar())) continue;
    for (int64_t i = begin; i < begin + count; ++i) best->offer(logits[i], static_cast<int32_t>(i));
  }
}

void write_row(const TopKParams& p, int64_t r, const BestList& best) {
  float log_mass = 0.0f;
  if (p.log_probabilities != nullptr && best.size > 0 && best.logits[0] < kInfinity) {
    log_mass = top_k_law::log_of_mass(total_mass(p.logits + r * p.logits_stride, p.vocab_size, best.logits[0]));
  }
  for (int32_t place = 0; place < p.k; ++place) {
    const bool taken = place < best.size;
    const int64_t out = r * p.k + place;
    p.values[out] = taken ? best.logits[place] : -kInfinity;
    p.token_ids[out] = taken ? best.ids[place] : -1;
    if (taken && p.draft_to_target != nullptr) p.token_ids[out] = p.draft_to_target[best.ids[place]];
    if (p.log_probabilities == nullptr) continue;
    p.log_probabilities[out] =
        taken ? top_k_law::log_probability(place == 0, best.logits[place], best.logits[0], log_mass) : -kInfinity;
  }
}

}  // namespace

void top_k(const TopKParams& params, ExecutionContext& context) {
  E31_INVARIANT(params.k >= 1 && params.k <= kMaxTopK);
  auto row = [&](int64_t r, int) {
    BestList best;
    best.capacity = params.k;
    find_best(params.logits + r * params.logits_stride, params.vocab_size, &best);
    write_row(params, r, best);
  };
  context.pool.parallel_for(params.num_rows, row);
}

}  // namespace eagle31rt::E31_ISA
