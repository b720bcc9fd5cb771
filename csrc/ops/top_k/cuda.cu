// The k largest logits of each row, in order, with ids and log-probabilities.
//
// One block a row, 1024 threads above 8192 ids. The selection is that of the sampler (sample/selection.cuh), whose
// law at temperature 1 also holds the mass that the log-probabilities need. Four passes over the logits: maximum,
// histogram with weights, the bucket in which the k-th lies, and the ids from the k-th up, which then rank each other
// (k is at most 64). Finding the k-th first keeps the list at k entries whatever the logits are.
//
// Only the first pass reads from memory. 64 rows of 32000 draft ids: 8.2 MB, 4.1 us on an A100, 2.4 us on an H100, 1.7
// us on an H200, 1.0 us on a B200; arithmetic is the bound: 143 PTX instructions an id over
// the four passes (counted by tools/ptxsim), 26 us at 32000 ids a multiprocessor and 1.4 GHz, the same for 1 row and
// for 100.
#include "base/check.h"
#include "device/cuda/launch.h"
#include "ops/sample/config.h"
#include "ops/sample/selection.cuh"
#include "ops/top_k/log_probability.h"
#include "ops/top_k/top_k.h"

namespace eagle31rt::cuda {

namespace {

E31_DEVICE void write_place(const TopKParams& p, int64_t row, int32_t place, float value, int32_t id, float logp) {
  const int64_t out = row * p.k + place;
  p.values[out] = value;
  p.token_ids[out] = id >= 0 && p.draft_to_target != nullptr ? p.draft_to_target[id] : id;
  if (p.log_probabilities != nullptr) p.log_probabilities[out] = logp;
}

// Puts the orders from `last` on into shared.candidates; returns their number.
E31_DEVICE int32_t collect(const RowLogits& logits, int32_t vocab_size, uint64_t last, LawShared& shared) {
  if (threadIdx.x == 0) shared.num_candidates = 0;
  __syncthreads();
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < vocab_size; id += blockDim.x) {
    const float logit = logits[id];
    const uint64_t order = order_of(logit, id);
    if (!(logit > -kInfinity) || order < last) continue;
    shared.candidates[atomicAdd(&shared.num_candidates, 1)].order = order;
  }
  __syncthreads();
  return shared.num_candidates;
}

__global__ void __launch_bounds__(kLogitsMaxThreads) top_k_kernel(const TopKParams p) {
  __shared__ LawShared shared;
  const int64_t row = blockIdx.x;
  const int32_t vocab_size = static_cast<int32_t>(p.vocab_size), thread = static_cast<int32_t>(threadIdx.x);
  const RowLogits logits = {p.logits + row * p.logits_stride, nullptr};
  const float max_logit = find_argmax(logits, vocab_size, shared.warp_values).logit;
  const RowLaw law = {max_logit, 1.0f, 0, 0, law::kUnitWeight, -1};  // no weight is too small to take part
  fill_histogram(law, logits, vocab_size, shared);
  const Cut cut = find_cut(law, logits, vocab_size, {static_cast<uint64_t>(p.k), kNever}, shared);
  const int32_t num_taken = collect(logits, vocab_size, cut.order, shared);
  if (thread < num_taken) {
    const uint64_t own = shared.candidates[thread].order;
    int32_t place = 0;
    for (int32_t i = 0; i < num_taken; ++i) place += shared.candidates[i].order > own ? 1 : 0;
    const int32_t id = id_of(own);
    const float log_mass = top_k_law::log_of_mass(cut.all.mass);
    const float log_probability = top_k_law::log_probability(place == 0, logits[id], max_logit, log_mass);
    write_place(p, row, place, logits[id], id, log_probability);
  } else if (thread < p.k) {
    write_place(p, row, thread, -kInfinity, -1, -kInfinity);
  }
}

}  // namespace

void top_k(const TopKParams& params, ExecutionContext& context) {
  E31_INVARIANT(params.k >= 1 && params.k <= kMaxTopK);
  launch("top_k", top_k_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows)),
          .block = dim3(static_cast<unsigned>(choose_logits_threads(params.vocab_size)))},
         context, params);
}

}  // namespace eagle31rt::cuda
