#include "device/execution_context.h"
#include "ops/linear/linear.h"
#include "ops/linear/multiply.h"

namespace eagle31rt::E31_ISA {

void linear(const LinearParams& params, ExecutionContext& context) {
  const Product product = {params.weight, params.bias,     params.residual,
                           params.output, params.num_rows, params.output_stride};
  multiply(product, context.pool, [&](int64_t first_row, int64_t num_rows, float* destination) {
    pack_rows(params.input + first_row * params.input_stride, params.input_stride, num_rows, params.weight.in_features,
              destination);
  });
}

}  // namespace eagle31rt::E31_ISA
