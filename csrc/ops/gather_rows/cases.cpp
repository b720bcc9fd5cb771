#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  int64_t num_columns;
  bool indexed;
};

constexpr Variant kVariants[] = {{1, true}, {7, true}, {576, true}, {64, false}, {1030, false}};
constexpr int64_t kStridePadding = 5;

class GatherRowsCase : public OpCase {
 public:
  GatherRowsCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant), stride_(static_cast<size_t>(variant.num_columns + kStridePadding)) {
    const size_t num_rows = row_ids.size();
    input_.resize(num_rows * stride_);
    for (size_t r = 0; r < num_rows; ++r) {
      // Rows are read in reverse; one in eight is left as it was.
      const size_t source = variant.indexed ? num_rows - 1 - r : r;
      fill_row(std::span(input_).subspan(source * stride_, stride_), row_ids[r], 0);
      indices_.push_back(row_hash(row_ids[r], 1) % 8 == 0 ? -1 : static_cast<int32_t>(source));
    }
  }

  void run(ExecutionContext& context) override { context.ops.gather_rows(prepare(), context); }
  void run_reference() override { reference::gather_rows(prepare()); }

  // The padding behind the columns is part of a row's output: it must stay untouched.
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * stride_, stride_));
  }

 private:
  GatherRowsParams prepare() {
    output_.assign(input_.size(), -7.0f);
    return {.input = input_.data(),
            .indices = variant_.indexed ? indices_.data() : nullptr,
            .output = output_.data(),
            .num_rows = static_cast<int64_t>(indices_.size()),
            .num_columns = variant_.num_columns,
            .input_stride = static_cast<int64_t>(stride_),
            .output_stride = static_cast<int64_t>(stride_)};
  }

  Variant variant_;
  size_t stride_;
  std::pmr::vector<float> input_, output_;
  std::pmr::vector<int32_t> indices_;
};

}  // namespace

OpEntry gather_rows_cases() {
  OpEntry entry;
  entry.name = "gather_rows";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(variant.num_columns, variant.indexed ? " columns, indexed" : " columns"));
  }
  entry.tolerance = {0, 0};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<GatherRowsCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
