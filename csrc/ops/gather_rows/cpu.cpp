#include "device/execution_context.h"
#include "ops/for_each_row.h"
#include "ops/gather_rows/gather_rows.h"

namespace eagle31rt::E31_ISA {

void gather_rows(const GatherRowsParams& params, ExecutionContext& context) {
  for_each_row(context, params.num_rows, params.num_columns, [&](int64_t row) {
    const int64_t source = params.indices == nullptr ? row : params.indices[row];
    if (source < 0) return;
    __builtin_memcpy(params.output + row * params.output_stride, params.input + source * params.input_stride,
                     static_cast<size_t>(params.num_columns) * sizeof(float));
  });
}

}  // namespace eagle31rt::E31_ISA
