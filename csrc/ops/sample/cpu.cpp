// One row per task: a greedy row is one pass over the logits, a sampled row two (maximum; weights) plus one block, a
// row with top_k or top_p up to three more passes (selection.h).
#include "device/execution_context.h"
#include "ops/sample/row_logits.h"
#include "ops/sample/selection.h"

namespace eagle31rt::E31_ISA {

namespace {

void copy_weights(const RowLaw& law, uint64_t* out) {
  uint64_t block[kBlock];
  for (int64_t begin = 0; begin < law.vocab_size; begin += kBlock) {
    const int64_t count = begin + kBlock < law.vocab_size ? kBlock : law.vocab_size - begin;
    law_weights(law, begin, count, block);
    std::memcpy(out + begin, block, static_cast<size_t>(count) * sizeof(uint64_t));
  }
}

}  // namespace

void sample(const SampleParams& params, ExecutionContext& context) {
  float* scratch = masked_row_scratch(params, context.pool.num_threads());
  auto sample_row = [&](int64_t r, int thread) {
    const float* logits = row_logits(params, r, scratch, thread);
    const SamplingRow& row = params.rows[r];
    uint64_t block_masses[kMaxBlocks];
    const RowLaw law = make_law(logits, params.vocab_size, row, block_masses);
    const uint64_t bits = random_bits64(row.seed, row.position, params.purpose, params.noise_index);
    params.token_ids[r] = static_cast<int32_t>(draw_from_law(law, block_masses, bits));
    if (params.weights != nullptr) copy_weights(law, params.weights + r * params.vocab_size);
  };
  context.pool.parallel_for(params.num_rows, sample_row);
}

// y[i] = exp(x[i]) by the vector form; lets tests compare it with numerics::exp_float (exp_variants.h).
void exp_array(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const int count = static_cast<int>(n - i < 16 ? n - i : 16);
    store_partial(y + i, exp(load_partial(x + i, count)), count);
  }
}

}  // namespace eagle31rt::E31_ISA
