#include "ops/gather_rows/gather_rows.h"
#include "ops/ops.h"

namespace eagle31rt::reference {

void gather_rows(const GatherRowsParams& params) {
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const int64_t source = params.indices == nullptr ? r : params.indices[r];
    if (source < 0) continue;
    for (int64_t i = 0; i < params.num_columns; ++i) {
      params.output[r * params.output_stride + i] = params.input[source * params.input_stride + i];
    }
  }
}

}  // namespace eagle31rt::reference
