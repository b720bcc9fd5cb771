#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int64_t vocab_size;
  int64_t hidden_size;
  float scale = 1.0f;
};

constexpr Variant kVariants[] = {{DType::kFloat32, 33, 8},
                                 {DType::kBFloat16, 1000, 576},
                                 {DType::kFloat16, 31, 24},
                                 {DType::kBFloat16, 1, 1},
                                 {DType::kBFloat16, 40, 37, 25.25f}};

class EmbeddingCase : public OpCase {
 public:
  EmbeddingCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : hidden_size_(static_cast<size_t>(variant.hidden_size)),
        scale_(variant.scale),
        table_(make_case_weight(variant.dtype, variant.vocab_size, variant.hidden_size)) {
    std::pmr::vector<float> row(hidden_size_);
    for (int64_t token = 0; token < variant.vocab_size; ++token) {
      fill_row(row, static_cast<uint64_t>(token), 0);
      table_.write_rows(token, row.data(), DType::kFloat32, 1);
    }
    for (const uint64_t id : row_ids) {
      token_ids_.push_back(static_cast<int32_t>(row_hash(id, 1) % static_cast<uint64_t>(variant.vocab_size)));
    }
  }

  void run(ExecutionContext& context) override { context.ops.embedding(prepare(), context); }
  void run_reference() override { reference::embedding(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * hidden_size_, hidden_size_));
  }

 private:
  EmbeddingParams prepare() {
    output_.assign(token_ids_.size() * hidden_size_, std::numeric_limits<float>::quiet_NaN());
    return {token_ids_.data(), table_.view(), output_.data(), static_cast<int64_t>(token_ids_.size()), scale_};
  }

  size_t hidden_size_;
  float scale_;
  PackedWeight table_;
  std::pmr::vector<int32_t> token_ids_;
  std::pmr::vector<float> output_;
};

}  // namespace

OpEntry embedding_cases() {
  OpEntry entry;
  entry.name = "embedding";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(dtype_name(variant.dtype), " ", variant.vocab_size, "x", variant.hidden_size));
  }
  entry.tolerance = {0, 0};  // widening is exact, and the product rounds once in any order
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<EmbeddingCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
