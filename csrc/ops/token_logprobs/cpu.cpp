// One row per task, three passes: the maximum, the weights, and the logits above that of the id.
#include "device/execution_context.h"
#include "ops/sample/row_law.h"
#include "ops/token_logprobs/token_logprobs.h"
#include "ops/top_k/log_probability.h"

namespace eagle31rt::E31_ISA {

namespace {

// Counts in float lanes: at most 2^16 a lane, so exact.
int32_t count_above(const float* logits, int64_t vocab_size, float bar) {
  const Lanes lane_bar = broadcast(bar), one = broadcast(1.0f);
  Lanes counts = zero();
  for (int64_t i = 0; i < vocab_size; i += 16) {
    counts = add(counts, select(less(lane_bar, load_logits(logits + i, vocab_size - i)), one, zero()));
  }
  return static_cast<int32_t>(reduce_add(counts));
}

void process_row(const TokenLogprobsParams& p, int64_t r) {
  const int32_t id = p.token_ids[r];
  p.logprobs[r] = -kInfinity;
  p.ranks[r] = 0;
  if (id < 0 || id >= p.vocab_size) return;
  const float* logits = p.logits + r * p.logits_stride;
  const bool is_possible = logits[id] > -kInfinity;  // false for NaN
  p.ranks[r] = 1 + count_above(logits, p.vocab_size, is_possible ? logits[id] : -kInfinity);
  if (!is_possible) return;
  const Argmax best = find_argmax(logits, p.vocab_size);
  const float log_mass =
      best.logit < kInfinity ? top_k_law::log_of_mass(total_mass(logits, p.vocab_size, best.logit)) : 0.0f;
  p.logprobs[r] = top_k_law::log_probability(id == best.id, logits[id], best.logit, log_mass);
}

}  // namespace

void token_logprobs(const TokenLogprobsParams& params, ExecutionContext& context) {
  auto row = [&](int64_t r, int) { process_row(params, r); };
  context.pool.parallel_for(params.num_rows, row);
}

}  // namespace eagle31rt::E31_ISA
