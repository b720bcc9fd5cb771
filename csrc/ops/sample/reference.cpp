#include <algorithm>

#include "ops/ops.h"
#include "ops/sample/reference_law.h"

namespace eagle31rt::reference {

void sample(const SampleParams& params) {
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const SamplingRow& row = params.rows[r];
    const std::vector<uint64_t> weights = row_weights(params, r);
    params.token_ids[r] = draw(weights, random_bits64(row.seed, row.position, params.purpose, params.noise_index));
    if (params.weights != nullptr) std::copy(weights.begin(), weights.end(), params.weights + r * params.vocab_size);
  }
}

}  // namespace eagle31rt::reference
