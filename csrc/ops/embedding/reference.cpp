#include "ops/ops.h"

namespace eagle31rt::reference {

void embedding(const EmbeddingParams& params) {
  const int64_t hidden_size = params.table.in_features;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    for (int64_t i = 0; i < hidden_size; ++i) {
      params.output[r * hidden_size + i] = params.scale * packed_value(params.table, params.token_ids[r], i);
    }
  }
}

}  // namespace eagle31rt::reference
