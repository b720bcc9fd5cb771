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
  for_each_row(context, p.num_rows, 2 * p.num_groups * p.hidden_size, [&](int64_t r) {
    for (int64_t group = 0; group < p.num_groups; ++group) {
      const int64_t offset = group * p.hidden_size;
      float* residual = p.residual + r * p.residual_stride + offset;
      if (p.delta != nullptr) add_row(residual, p.delta + r * p.num_groups * p.hidden_size + offset, p.hidden_size);
      const float inverse = inverse_rms(residual, p.hidden_size, p.epsilon);
      scale_row(residual, inverse, p.weight, p.output + r * p.output_stride + offset, p.hidden_size);
    }
  });
}

}  // namespace eagle31rt::E31_ISA
