// One token id per row of logits, by the integer law of sample.h: the very ids of the CPU.
//
// One block a row, 1024 threads above 8192 ids; shared memory 41 KiB whatever the vocabulary. Passes over the
// logits: 1 at temperature 0 (argmax), 2 when sampling (maximum; weights, summed in one segment a warp) plus one
// segment of the 32 for the draw, 2 more for top_k or top_p, 3 more for both (selection.cuh). The weights are integers,
// so threads add them in any order; they are recomputed in each pass, since storing them would cost twice the bytes of
// the logits.
//
// Only the first pass reads from memory: 513 KB a row of 128256 stay in the second-level cache (64 rows: 33 MB, of 40
// to 126 MB). 64 rows: 33 MB, 16 us on an A100, 10 us on an H100, 7 us on an H200, 4 us on a B200. A single row is
// bound by what one multiprocessor can load, about 90 GB/s: 6 us a pass, next to milliseconds for the forward pass that
// made it; a pass with weights is bound by their 67 PTX instructions an id: 128256 * 67 / 128 lanes, 48 us at 1.4 GHz.
// Sharing a row among blocks would shorten that but needs a second launch to join them; left until a measurement asks
// for it.
#include "device/cuda/launch.h"
#include "ops/sample/config.h"
#include "ops/sample/cuda_rows.h"
#include "ops/sample/selection.cuh"

namespace eagle31rt::cuda {

namespace {

__global__ void __launch_bounds__(kLogitsMaxThreads)
    sample_kernel(const SampleParams params, const int32_t* num_rows_in_use, uint32_t* mask_scratch) {
  __shared__ LawShared shared;
  const int64_t row = blockIdx.x;
  if (num_rows_in_use != nullptr && row >= *num_rows_in_use) return;
  const int32_t vocab_size = static_cast<int32_t>(params.vocab_size);
  const RowLogits logits = row_logits(params, row, mask_scratch + row * num_mask_words(vocab_size), true);
  const SamplingRow& sampling = params.rows[row];
  const RowLaw law = make_law(logits, vocab_size, sampling, shared);
  const uint64_t bits = random_bits64(sampling.seed, sampling.position, params.purpose, params.noise_index);
  const int32_t id = draw_from_law(law, logits, vocab_size, shared.masses, bits, shared.warp_values);
  if (threadIdx.x == 0) params.token_ids[row] = id;
  if (params.weights == nullptr) return;
  uint64_t* weights = params.weights + row * params.vocab_size;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < vocab_size; i += blockDim.x) {
    weights[i] = weight_of(law, logits, i);
  }
}

}  // namespace

size_t mask_scratch_bytes(const SampleParams& params) {
  if (params.masked_begin == nullptr) return 0;
  return static_cast<size_t>(params.num_rows * num_mask_words(params.vocab_size)) * sizeof(uint32_t);
}

void sample_rows(const SampleParams& params, const int32_t* num_rows_in_use, uint32_t* mask_scratch,
                 ExecutionContext& context) {
  launch("sample", sample_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows)),
          .block = dim3(static_cast<unsigned>(choose_logits_threads(params.vocab_size)))},
         context, params, num_rows_in_use, mask_scratch);
}

void sample(const SampleParams& params, ExecutionContext& context) {
  const size_t num_bytes = mask_scratch_bytes(params);
  uint32_t* mask_scratch = num_bytes == 0 ? nullptr : static_cast<uint32_t*>(context.device->workspace(num_bytes));
  const int32_t* all_rows = nullptr;
  sample_rows(params, all_rows, mask_scratch, context);
}

}  // namespace eagle31rt::cuda
