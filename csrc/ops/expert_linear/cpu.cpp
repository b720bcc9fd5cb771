// The panels of all chosen experts are shared out to the threads at once, so that experts too small for all threads
// keep them busy together; the weights of an expert are streamed once for all its rows.
#include "device/execution_context.h"
#include "ops/expert_linear/expert_linear.h"
#include "ops/linear/multiply.h"

namespace eagle31rt::E31_ISA {

namespace {

// Rows that lie anywhere, laid side by side as pack_rows lays neighbours.
void pack_chosen_rows(const float* input, const int32_t* rows, int64_t num_rows, int64_t in_features, float* packed) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* row = input + rows[r] * in_features;
    for (int64_t k = 0; k < in_features; ++k) packed[k * num_rows + r] = row[k];
  }
}

}  // namespace

void expert_linear(const ExpertLinearParams& params, ExecutionContext& context) {
  const int64_t in_features = params.weight.in_features;
  const int64_t out_features = params.weight.out_features;
  const auto product_of = [&](int64_t expert) {
    const int64_t begin = params.expert_begin[expert];
    return Product{expert_weight(params, expert),
                   params.bias == nullptr ? nullptr : params.bias + expert * out_features,
                   nullptr,
                   params.output + begin * out_features,
                   params.expert_begin[expert + 1] - begin,
                   out_features};
  };
  const auto lay_out = [&](int64_t expert, int64_t first_row, int64_t count, float* destination) {
    const int64_t place = params.expert_begin[expert] + first_row;
    if (params.input_rows == nullptr) {
      pack_rows(params.input + place * in_features, in_features, count, in_features, destination);
    } else {
      pack_chosen_rows(params.input, params.input_rows + place, count, in_features, destination);
    }
  };
  multiply_each(params.num_experts, context.pool, product_of, lay_out);
}

}  // namespace eagle31rt::E31_ISA
