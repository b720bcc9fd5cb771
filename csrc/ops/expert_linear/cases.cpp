#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int64_t in_features;
  int64_t out_features;
  int32_t num_experts;
  bool has_bias;
  bool gathered;  // rows lie in their own order, else in that of places
  WeightForm form = {};
};

// Sizes around the panel and the blocks of K as for linear; the last cuts K into two segments on CUDA.
constexpr Variant kVariants[] = {
    {DType::kFloat32, 40, 33, 5, true, true},
    {DType::kBFloat16, 64, 64, 8, false, false},
    {DType::kFloat16, 130, 31, 3, true, true},
    {DType::kBFloat16, 192, 96, 16, true, true},
    {DType::kFloat32, 576, 48, 2, false, false},
    {DType::kBFloat16, 1100, 72, 4, false, true},
    {DType::kBFloat16, 192, 72, 2, true, true, kMxfp4Form},
    {DType::kBFloat16, 1100, 48, 3, false, true, kInt4Form},
    {DType::kBFloat16, 200, 33, 2, false, false, kFp8Form},
    {DType::kFloat16, 130, 31, 3, true, true, kMxfp4Form},
    {DType::kFloat16, 64, 40, 4, false, false, {WeightCode::kInt4, ScaleType::kFloat32, 64}},
    {DType::kFloat16, 160, 64, 2, false, true, kFp8Form},
    {DType::kFloat32, 96, 33, 4, true, true, kMxfp4Form},
};

enum : uint64_t { kInputStream, kWeightStream, kBiasStream, kExpertStream };

// A row goes to one expert, which its id chooses.
class ExpertLinearCase : public OpCase {
 public:
  ExpertLinearCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        weights_(make_case_weight(variant.dtype, num_padded_rows(variant), variant.in_features, variant.form)),
        bias_(static_cast<size_t>(variant.num_experts * variant.out_features)),
        input_(num_rows_ * static_cast<size_t>(variant.in_features)),
        sorted_rows_(num_rows_),
        places_(num_rows_),
        expert_begin_(static_cast<size_t>(variant.num_experts) + 1) {
    for (int64_t i = 0; i < variant.num_experts * variant.out_features; ++i) {
      const int64_t row = i / variant.out_features * padded_rows(variant) + i % variant.out_features;
      write_case_row(weights_, row, static_cast<uint64_t>(i), kWeightStream);
    }
    fill_row(bias_, 0, kBiasStream);
    sort_rows(row_ids);
    for (size_t r = 0; r < num_rows_; ++r) {
      const size_t place = variant.gathered ? r : static_cast<size_t>(places_[r]);
      const auto size = static_cast<size_t>(variant.in_features);
      fill_row(std::span(input_).subspan(place * size, size), row_ids[r], kInputStream);
    }
  }

  void run(ExecutionContext& context) override { context.ops.expert_linear(prepare(), context); }
  void run_reference() override { reference::expert_linear(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    const auto size = static_cast<size_t>(variant_.out_features);
    const auto place = static_cast<size_t>(places_[static_cast<size_t>(row)]);
    return std::as_bytes(std::span(output_).subspan(place * size, size));
  }

 private:
  // An expert starts at a whole panel.
  static int64_t padded_rows(const Variant& variant) {
    return (variant.out_features + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  }
  static int64_t num_padded_rows(const Variant& variant) { return variant.num_experts * padded_rows(variant); }

  void sort_rows(std::span<const uint64_t> row_ids) {
    int32_t place = 0;
    for (int32_t expert = 0; expert < variant_.num_experts; ++expert) {
      expert_begin_[static_cast<size_t>(expert)] = place;
      for (size_t r = 0; r < num_rows_; ++r) {
        if (row_hash(row_ids[r], kExpertStream) % static_cast<uint64_t>(variant_.num_experts) !=
            static_cast<uint64_t>(expert)) {
          continue;
        }
        sorted_rows_[static_cast<size_t>(place)] = static_cast<int32_t>(r);
        places_[r] = place++;
      }
    }
    expert_begin_.back() = place;
  }

  ExpertLinearParams prepare() {
    output_.assign(num_rows_ * static_cast<size_t>(variant_.out_features), std::numeric_limits<float>::quiet_NaN());
    ExpertLinearParams params{};
    params.input = input_.data();
    params.input_rows = variant_.gathered ? sorted_rows_.data() : nullptr;
    params.weight = weights_.view();
    params.weight.out_features = variant_.out_features;
    params.expert_stride = weights_.num_bytes() / variant_.num_experts;
    params.bias = variant_.has_bias ? bias_.data() : nullptr;
    params.expert_begin = expert_begin_.data();
    params.output = output_.data();
    params.num_places = static_cast<int64_t>(num_rows_);
    params.num_experts = variant_.num_experts;
    return params;
  }

  Variant variant_;
  size_t num_rows_;
  PackedWeight weights_;  // experts one behind the other
  std::pmr::vector<float> bias_, input_, output_;
  std::pmr::vector<int32_t> sorted_rows_, places_, expert_begin_;
};

std::string describe(const Variant& variant) {
  return concat(variant.num_experts, " experts, ", dtype_name(variant.dtype), " ", variant.in_features, "->",
                variant.out_features, describe_form(variant.form), variant.has_bias ? " bias" : "",
                variant.gathered ? " gathered" : "");
}

}  // namespace

OpEntry expert_linear_cases() {
  OpEntry entry;
  entry.name = "expert_linear";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  entry.tolerance = {2e-5, 1e-6};  // those of linear, for the same arithmetic and inputs
  entry.cuda_tolerance = {1.1e-2, 1e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<ExpertLinearCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
