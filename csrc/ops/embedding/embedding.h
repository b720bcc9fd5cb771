// output[r] = scale * table[token_ids[r]], in float32.
#pragma once

#include <cstdint>

#include "ops/linear/packed_weight.h"

namespace eagle31rt {

struct EmbeddingParams {
  const int32_t* token_ids;  // [num_rows], each in [0, table.out_features)
  PackedWeightView
      table;      // out_features = vocabulary, in_features = hidden size; packed, so that a tied head shares it
  float* output;  // [num_rows, hidden_size]
  int64_t num_rows;
  float scale = 1.0f;
};

}  // namespace eagle31rt
