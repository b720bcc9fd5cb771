#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  size_t hidden_size;
  size_t top_k;
  bool has_base;
  bool in_place;
};
constexpr Variant kVariants[] = {
    {1, 1, false, false}, {33, 2, true, false}, {64, 8, true, true}, {1100, 4, true, true}};

enum : uint64_t { kExpertStream, kWeightStream, kBaseStream };

// Places run from the last row to the first, a row's from its last expert to its first.
class MoeCombineCase : public OpCase {
 public:
  MoeCombineCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        expert_output_(num_rows_ * variant.top_k * variant.hidden_size),
        weights_(num_rows_ * variant.top_k),
        base_(num_rows_ * variant.hidden_size),
        places_(num_rows_ * variant.top_k) {
    const size_t k = variant.top_k, size = variant.hidden_size;
    for (size_t r = 0; r < num_rows_; ++r) {
      fill_row(std::span(weights_).subspan(r * k, k), row_ids[r], kWeightStream);
      fill_row(std::span(base_).subspan(r * size, size), row_ids[r], kBaseStream);
      for (size_t j = 0; j < k; ++j) {
        const size_t place = num_rows_ * k - 1 - (r * k + j);
        places_[r * k + j] = static_cast<int32_t>(place);
        fill_row(std::span(expert_output_).subspan(place * size, size), row_ids[r], kExpertStream + 16 * (j + 1), 3.0f);
      }
    }
  }

  void run(ExecutionContext& context) override { context.ops.moe_combine(prepare(), context); }
  void run_reference() override { reference::moe_combine(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    const size_t size = variant_.hidden_size;
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * size, size));
  }

 private:
  MoeCombineParams prepare() {
    output_ =
        variant_.in_place ? base_ : std::pmr::vector<float>(base_.size(), std::numeric_limits<float>::quiet_NaN());
    MoeCombineParams params{};
    params.expert_output = expert_output_.data();
    params.weights = weights_.data();
    params.places = places_.data();
    params.base = !variant_.has_base ? nullptr : variant_.in_place ? output_.data() : base_.data();
    params.output = output_.data();
    params.num_rows = static_cast<int64_t>(num_rows_);
    params.hidden_size = static_cast<int64_t>(variant_.hidden_size);
    params.top_k = static_cast<int32_t>(variant_.top_k);
    return params;
  }

  Variant variant_;
  size_t num_rows_;
  std::pmr::vector<float> expert_output_, weights_, base_, output_;
  std::pmr::vector<int32_t> places_;
};

}  // namespace

OpEntry moe_combine_cases() {
  OpEntry entry;
  entry.name = "moe_combine";
  for (const Variant& v : kVariants) {
    entry.variants.push_back(concat(v.top_k, " experts of ", v.hidden_size, v.has_base ? " onto a base" : "",
                                    v.in_place ? " in place" : ""));
  }
  // Up to 8 products below 3: partial sums below 24, half a unit (2^-20) each at the very most, 8 of them.
  entry.tolerance = {8e-6, 1e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<MoeCombineCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
