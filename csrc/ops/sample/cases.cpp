#include <algorithm>
#include <limits>

#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kPadding = 5;  // lanes behind the vocabulary that hold the largest values of the row

enum Stream : uint64_t { kLogits, kKind, kFilters, kSeed, kMask };

struct Variant {
  const char* name;
  int64_t vocab_size;
  float temperature;
  bool filters;
};
constexpr Variant kVariants[] = {
    {"greedy, 1000 ids", 1000, 0.0f, false},
    {"temperature 0.8, 1537 ids", 1537, 0.8f, false},
    {"temperature 1.3, top_k, top_p, min_p and masks, 1100 ids", 1100, 1.3f, true},
};

void fill_logits(std::span<float> row, uint64_t row_id) {
  fill_row(row, row_id, kLogits, 8.0f);
  const uint64_t hash = row_hash(row_id, kKind);
  const size_t place = (hash >> 8) % row.size();
  switch (hash % 8) {
    case 0:  // ties, also of the maximum
      for (float& x : row) x = static_cast<float>(static_cast<int>(x));
      break;
    case 1:
      for (size_t i = place % 3; i < row.size(); i += 3) row[i] = kNaN;
      break;
    case 2:
      row[place] = row[row.size() / 2] = kInfinity;
      break;
    case 3:
      std::fill(row.begin(), row.end(), (hash >> 40) % 2 == 0 ? -kInfinity : kNaN);
      break;
    default:
      row[place] = 11.0f;
      break;
  }
}

class SampleCase : public OpCase {
 public:
  SampleCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : logits_(row_ids.size() * (variant.vocab_size + kPadding), 1e30f), token_ids_(row_ids.size()) {
    const int64_t stride = variant.vocab_size + kPadding;
    masked_begin_.push_back(0);
    for (size_t r = 0; r < row_ids.size(); ++r) {
      const uint64_t id = row_ids[r];
      fill_logits({logits_.data() + r * stride, static_cast<size_t>(variant.vocab_size)}, id);
      const uint64_t choice = row_hash(id, kFilters);
      SamplingRow row = {variant.temperature, 0, 1.0f, 0.0f, row_hash(id, kSeed), static_cast<int64_t>(id % 4096)};
      if (variant.filters) {
        constexpr int32_t kTopK[] = {0, 1, 20, 2000};
        constexpr float kTopP[] = {1.0f, 0.95f, 0.5f, 1e-6f};
        constexpr float kMinP[] = {0.0f, 0.0f, 0.02f, 0.5f};
        row.top_k = kTopK[choice % 4];
        row.top_p = kTopP[(choice >> 8) % 4];
        row.min_p = kMinP[(choice >> 16) % 4];
        for (uint64_t i = 0; i < (choice >> 24) % 5; ++i) {
          masked_ids_.push_back(static_cast<int32_t>(row_hash(id, kMask + i) % variant.vocab_size));
        }
      }
      rows_.push_back(row);
      masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    }
    params_.vocab_size = variant.vocab_size;
    params_.logits_stride = stride;
    params_.logits = logits_.data();
    params_.rows = rows_.data();
    params_.masked_begin = masked_begin_.data();
    params_.masked_ids = masked_ids_.data();
    params_.token_ids = token_ids_.data();
    params_.num_rows = static_cast<int64_t>(row_ids.size());
  }

  void run(ExecutionContext& context) override { context.ops.sample(params_, context); }
  void run_reference() override { reference::sample(params_); }
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(token_ids_).subspan(static_cast<size_t>(row), 1));
  }

 private:
  std::pmr::vector<float> logits_;
  std::pmr::vector<SamplingRow> rows_;
  std::pmr::vector<int32_t> masked_begin_, masked_ids_, token_ids_;
  SampleParams params_ = {};
};

}  // namespace

OpEntry sample_cases() {
  OpEntry entry;
  entry.name = "sample";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<SampleCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
