#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr size_t kSizes[] = {1, 15, 16, 33, 1536};

enum : uint64_t { kGateStream, kUpStream };

class SiluMulCase : public OpCase {
 public:
  SiluMulCase(size_t size, std::span<const uint64_t> row_ids)
      : size_(size), num_rows_(row_ids.size()), input_(num_rows_ * 2 * size) {
    for (size_t r = 0; r < num_rows_; ++r) {
      // Past -88 the exponential overflows, past 17 silu is the identity: scale 100 sees both.
      fill_row(std::span(input_).subspan(r * 2 * size, size), row_ids[r], kGateStream, 100.0f);
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
    return params;
  }

  size_t size_, num_rows_;
  std::pmr::vector<float> input_, output_;
};

}  // namespace

OpEntry silu_mul_cases() {
  OpEntry entry;
  entry.name = "silu_mul";
  for (size_t size : kSizes) entry.variants.push_back(concat("intermediate ", size));
  // exp is good to 2^-22; sum, quotient and product round once each. Gates below -88.7 give 0 for what is below 1e-35.
  entry.tolerance = {1e-35, 6e-7};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<SiluMulCase>(kSizes[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
