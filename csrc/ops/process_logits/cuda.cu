// The rules of process_logits.h, in place.
//
// One block a row, in up to four phases that end in a barrier, because each reads what the one before wrote: the mask
// (a thread an id, a warp a word), the biases, the ids of the history (each counts itself in the path and marks where
// it stands), and the ids of the path that no thread of the history marked. Ids within a phase are unique, so threads
// never meet.
//
// Bytes: a mask of 128256 ids is 16 KB read and at most 513 KB written, a history of 2000 ids 24 KB and two scattered
// sectors an id (128 KB). 64 rows that forbid nearly everything: 34 MB, 17 us on an A100, 10 us on an H100, 7 us on an
// H200, 4 us on a B200; arithmetic is 4 instructions an id and does not count. A single row is bound by what one
// multiprocessor can store, about 6 us, and by the launch without a mask.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/process_logits/logit_rules.h"
#include "ops/sample/config.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kPathWords = 2;
static_assert(kMaxPathLength == 32 * kPathWords);

E31_DEVICE void apply_mask(const uint32_t* words, int32_t vocab_size, float* logits) {
#pragma unroll 4
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < vocab_size; id += blockDim.x) {
    if ((words[id / 32] >> (id % 32) & 1u) == 0) logits[id] = -__builtin_inff();
  }
}

__global__ void __launch_bounds__(kLogitsMaxThreads) process_logits_kernel(const ProcessLogitsParams params) {
  __shared__ uint32_t in_history[kPathWords];  // places of the path
  const ProcessRow row = params.rows[blockIdx.x];
  float* logits = params.logits + params.row_indices[blockIdx.x] * params.logits_stride;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), num_threads = static_cast<int32_t>(blockDim.x);
  if (thread < kPathWords) in_history[thread] = 0;
  if (row.mask_begin >= 0) {
    apply_mask(params.masks + row.mask_begin, static_cast<int32_t>(params.vocab_size), logits);
  }
  __syncthreads();
  for (int32_t i = row.bias_begin + thread; i < row.bias_end; i += num_threads) {
    logit_rules::add_bias(params, params.biases[i], logits);
  }
  __syncthreads();
  for (int32_t i = row.history_begin + thread; i < row.history_end; i += num_threads) {
    const uint64_t places = logit_rules::penalize_seen(params, row, params.history[i], logits);
    if (places == 0) continue;
    atomicOr(&in_history[0], static_cast<uint32_t>(places));
    atomicOr(&in_history[1], static_cast<uint32_t>(places >> 32));
  }
  __syncthreads();
  if (thread >= row.path_end - row.path_begin) return;
  logit_rules::penalize_draft(params, row, thread, uint64_t{in_history[1]} << 32 | in_history[0], logits);
}

}  // namespace

void process_logits(const ProcessLogitsParams& params, ExecutionContext& context) {
  launch("process_logits", process_logits_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows)),
          .block = dim3(static_cast<unsigned>(choose_logits_threads(params.vocab_size)))},
         context, params);
}

}  // namespace eagle31rt::cuda
