#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  size_t hidden_size;
  bool has_delta;
  size_t gap;  // unused elements after each row of residual and output
  size_t num_groups = 1;

  size_t row_size() const { return hidden_size * num_groups; }
};

// Sizes around the 16 lanes, a draft's strided half (gap) and the sizes of real models.
constexpr Variant kVariants[] = {{1, false, 0},   {15, true, 0},      {16, false, 3},
                                 {40, true, 40},  {576, false, 0},    {576, true, 576},
                                 {2048, true, 0}, {24, false, 40, 5}, {64, true, 0, 3}};

enum : uint64_t { kResidualStream, kDeltaStream, kWeightStream };

class RmsNormCase : public OpCase {
 public:
  RmsNormCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        stride_(variant.row_size() + variant.gap),
        input_(num_rows_ * stride_, std::numeric_limits<float>::quiet_NaN()),
        delta_(num_rows_ * variant.row_size()),
        weight_(variant.hidden_size) {
    fill_row(weight_, 0, kWeightStream, 2.0f);
    for (size_t r = 0; r < num_rows_; ++r) {
      fill_row(std::span(input_).subspan(r * stride_, variant.row_size()), row_ids[r], kResidualStream, 30.0f);
      fill_row(std::span(delta_).subspan(r * variant.row_size(), variant.row_size()), row_ids[r], kDeltaStream, 3.0f);
    }
  }

  void run(ExecutionContext& context) override {
    context.ops.rms_norm(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::rms_norm(prepare());
    collect();
  }

  // The normed row, then the residual.
  std::span<const std::byte> output(int64_t row) const override {
    const size_t size = 2 * variant_.row_size();
    return std::as_bytes(std::span(result_).subspan(static_cast<size_t>(row) * size, size));
  }

 private:
  RmsNormParams prepare() {
    residual_ = input_;
    output_.assign(num_rows_ * stride_, std::numeric_limits<float>::quiet_NaN());
    RmsNormParams params{};
    params.residual = residual_.data();
    params.delta = variant_.has_delta ? delta_.data() : nullptr;
    params.weight = weight_.data();
    params.output = output_.data();
    params.num_rows = static_cast<int64_t>(num_rows_);
    params.hidden_size = static_cast<int64_t>(variant_.hidden_size);
    params.residual_stride = params.output_stride = static_cast<int64_t>(stride_);
    params.epsilon = 1e-5f;
    params.num_groups = static_cast<int32_t>(variant_.num_groups);
    return params;
  }

  void collect() {
    result_.clear();
    for (size_t r = 0; r < num_rows_; ++r) {
      for (const std::pmr::vector<float>* source : {&output_, &residual_}) {
        const auto row = source->begin() + static_cast<std::ptrdiff_t>(r * stride_);
        result_.insert(result_.end(), row, row + static_cast<std::ptrdiff_t>(variant_.row_size()));
      }
    }
  }

  Variant variant_;
  size_t num_rows_, stride_;
  std::pmr::vector<float> input_, delta_, weight_;
  std::pmr::vector<float> residual_, output_, result_;
};

}  // namespace

OpEntry rms_norm_cases() {
  OpEntry entry;
  entry.name = "rms_norm";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat("hidden ", variant.hidden_size, variant.has_delta ? " with delta" : "",
                                    variant.gap != 0 ? " strided" : "",
                                    variant.num_groups > 1 ? concat(" in ", variant.num_groups, " groups") : ""));
  }
  // Five roundings after the sum, whose own error 16 lanes keep near 1e-7; outputs are at most 2 * sqrt(3) here.
  entry.tolerance = {1e-7, 6e-7};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<RmsNormCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
