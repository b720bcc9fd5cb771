#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  size_t size;
  Activation activation = Activation::kSilu;
};
constexpr Variant kVariants[] = {{1},
                                 {15},
                                 {16},
                                 {33, Activation::kClampedSwiglu},
                                 {33},
                                 {1536},
                                 {48, Activation::kClampedSwiglu},
                                 {33, Activation::kGeluTanh}};

enum : uint64_t { kGateStream, kUpStream };

class SiluMulCase : public OpCase {
 public:
  SiluMulCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : size_(variant.size), activation_(variant.activation), num_rows_(row_ids.size()), input_(num_rows_ * 2 * size_) {
    const size_t size = size_;
    for (size_t r = 0; r < num_rows_; ++r) {
      // Past -88 the exponential overflows, past 17 silu is the identity: scale 100 sees both.
      fill_row(std::span(input_).subspan(r * 2 * size, size), row_ids[r], kGateStream,
               activation_ == Activation::kSilu ? 100.0f : 4.0f);
      fill_row(std::span(input_).subspan(r * 2 * size + size, size), row_ids[r], kUpStream, 4.0f);
    }
  }

  void run(ExecutionContext& context) override { context.ops.silu_mul(prepare(), context); }
  void run_reference() override { reference::silu_mul(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * size_, size_));
  }

 private:
  SiluMulParams prepare() {
    output_.assign(num_rows_ * size_, std::numeric_limits<float>::quiet_NaN());
    SiluMulParams params{};
    params.input = input_.data();
    params.output = output_.data();
    params.num_rows = static_cast<int64_t>(num_rows_);
    params.intermediate_size = static_cast<int64_t>(size_);
    params.activation = activation_;
    params.alpha = 1.702f;
    params.limit = 3.0f;  // inputs lie on both sides
    return params;
  }

  size_t size_;
  Activation activation_;
  size_t num_rows_;
  std::pmr::vector<float> input_, output_;
};

}  // namespace

OpEntry silu_mul_cases() {
  OpEntry entry;
  entry.name = "silu_mul";
  for (const Variant& variant : kVariants) {
    const bool gelu = variant.activation == Activation::kGeluTanh;
    const bool clamped = variant.activation == Activation::kClampedSwiglu;
    entry.variants.push_back(concat("intermediate ", variant.size,
                                    clamped ? ", clamped swiglu"
                                    : gelu  ? ", gelu"
                                            : ""));
  }
  // exp is good to 2^-22; sum, quotient and products round once each. Gates below -88.7 give 0 for what is below 1e-35.
  // The clamped one scales its gate first: exp of 7 = 4 * 1.702 takes the rounding of that seven times.
  entry.tolerance = {1e-35, 1.2e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<SiluMulCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
