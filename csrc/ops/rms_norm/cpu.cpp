#include "ops/for_each_row.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/row_norm.h"

namespace eagle31rt::E31_ISA {

namespace {

void add_row(float* residual, const float* delta, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(residual + i, add(load(residual + i), load(delta + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_partial(residual + i, add(load_partial(residual + i, rest), load_partial(delta + i, rest)), rest);
  }
}

}  // namespace

void rms_norm(const RmsNormParams& p, ExecutionContext& context) {
  for_each_row(context, p.num_rows, 2 * p.hidden_size, [&](int64_t r) {
    float* residual = p.residual + r * p.residual_stride;
    if (p.delta != nullptr) add_row(residual, p.delta + r * p.hidden_size, p.hidden_size);
    const float inverse = inverse_rms(residual, p.hidden_size, p.epsilon);
    scale_row(residual, inverse, p.weight, p.output + r * p.output_stride, p.hidden_size);
  });
}

}  // namespace eagle31rt::E31_ISA
