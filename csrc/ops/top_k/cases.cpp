#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kPadding = 3;  // lanes behind the vocabulary that hold the largest values of the row

enum Stream : uint64_t { kLogits, kKind };

struct Variant {
  size_t vocab_size;
  int32_t k;
  bool mapped;
};
constexpr Variant kVariants[] = {{5, 8, false}, {700, 1, false}, {1030, 10, true}, {1500, 64, false}};

void fill_logits(std::span<float> row, uint64_t row_id) {
  fill_row(row, row_id, kLogits, 12.0f);
  const uint64_t hash = row_hash(row_id, kKind);
  switch (hash % 6) {
    case 0:  // ties
      for (float& x : row) x = static_cast<float>(static_cast<int>(x) / 4);
      break;
    case 1:
      for (size_t i = (hash >> 8) % 2; i < row.size(); i += 2) row[i] = kNaN;
      break;
    case 2:  // fewer than k
      std::fill(row.begin() + static_cast<std::ptrdiff_t>((hash >> 8) % 4), row.end(), -kInfinity);
      break;
    case 3:
      row[(hash >> 8) % row.size()] = row[row.size() / 2] = kInfinity;
      break;
    default:
      break;
  }
}

// Infinities become finite, because the comparison with the reference takes differences.
float finite(float x) { return std::clamp(x, -1e38f, 1e38f); }

// A row's output: values, ids (as floats, which hold them exactly), log-probabilities.
class TopKCase : public OpCase {
 public:
  TopKCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        stride_(variant.vocab_size + kPadding),
        logits_(num_rows_ * stride_, 1e30f) {
    for (size_t r = 0; r < num_rows_; ++r) {
      fill_logits({logits_.data() + r * stride_, variant.vocab_size}, row_ids[r]);
    }
    for (size_t id = 0; id < variant.vocab_size; ++id) map_.push_back(static_cast<int32_t>(3 * id + id / 5));
  }

  void run(ExecutionContext& context) override {
    context.ops.top_k(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::top_k(prepare());
    collect();
  }
  std::span<const std::byte> output(int64_t row) const override {
    const size_t size = 3 * static_cast<size_t>(variant_.k);
    return std::as_bytes(std::span(result_).subspan(static_cast<size_t>(row) * size, size));
  }

 private:
  TopKParams prepare() {
    const size_t size = num_rows_ * static_cast<size_t>(variant_.k);
    values_.assign(size, kNaN);
    log_probabilities_.assign(size, kNaN);
    token_ids_.assign(size, -7);
    return {.logits = logits_.data(),
            .draft_to_target = variant_.mapped ? map_.data() : nullptr,
            .values = values_.data(),
            .token_ids = token_ids_.data(),
            .log_probabilities = log_probabilities_.data(),
            .num_rows = static_cast<int64_t>(num_rows_),
            .vocab_size = static_cast<int64_t>(variant_.vocab_size),
            .logits_stride = static_cast<int64_t>(stride_),
            .k = variant_.k};
  }

  void collect() {
    result_.clear();
    const auto k = static_cast<std::ptrdiff_t>(variant_.k);
    const auto append = [&](auto first) {
      std::transform(first, first + k, std::back_inserter(result_),
                     [](auto x) { return finite(static_cast<float>(x)); });
    };
    for (std::ptrdiff_t begin = 0; begin < k * static_cast<std::ptrdiff_t>(num_rows_); begin += k) {
      append(values_.begin() + begin);
      append(token_ids_.begin() + begin);
      append(log_probabilities_.begin() + begin);
    }
  }

  Variant variant_;
  size_t num_rows_, stride_;
  std::pmr::vector<float> logits_, values_, log_probabilities_, result_;
  std::pmr::vector<int32_t> map_, token_ids_;
};

}  // namespace

OpEntry top_k_cases() {
  OpEntry entry;
  entry.name = "top_k";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(variant.k, " of ", variant.vocab_size, variant.mapped ? " ids, mapped" : " ids"));
  }
  // Values and ids are exact. The logarithm of the mass is at most 7.4 here: 2^-22 from exp, 2^-23 of it from log, and
  // the roundings of two differences of up to 31.
  entry.tolerance = {1.2e-6, 1.2e-7};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<TopKCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
