#include <algorithm>
#include <limits>
#include <string>

#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kPadding = 3;  // lanes behind the vocabulary that hold the largest values of the row
constexpr int32_t kVocabSizes[] = {5, 700, 2500};

enum Stream : uint64_t { kLogits, kKind, kToken };

void fill_logits(std::span<float> row, uint64_t row_id, int32_t token_id) {
  fill_row(row, row_id, kLogits, 12.0f);
  const uint64_t hash = row_hash(row_id, kKind);
  const size_t place = (hash >> 8) % row.size();
  switch (hash % 8) {
    case 0:  // ties
      for (float& x : row) x = static_cast<float>(static_cast<int>(x) / 4);
      break;
    case 1:
      for (size_t i = place % 2; i < row.size(); i += 2) row[i] = kNaN;
      break;
    case 2:
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(place), row.end(), -kInfinity);
      break;
    case 3:
      row[place] = row[row.size() / 2] = kInfinity;
      break;
    case 4:  // the first or second of two infinities is asked for
      if (token_id >= 0 && token_id < static_cast<int32_t>(row.size())) row[place] = row[token_id] = kInfinity;
      break;
    default:
      break;
  }
}

// A row's output: the log-probability (finite, because the comparison takes differences) and the rank as a float, which
// holds it exactly.
class TokenLogprobsCase : public OpCase {
 public:
  TokenLogprobsCase(int32_t vocab_size, std::span<const uint64_t> row_ids)
      : vocab_size_(vocab_size),
        stride_(static_cast<size_t>(vocab_size) + kPadding),
        logits_(row_ids.size() * stride_, 1e30f) {
    for (const uint64_t id : row_ids) {
      const uint64_t hash = row_hash(id, kToken);
      const auto range = static_cast<uint64_t>(vocab_size) + (hash >> 32) % 3;  // sometimes an id outside
      const size_t row = token_ids_.size();
      token_ids_.push_back(static_cast<int32_t>(hash % range) - static_cast<int32_t>((hash >> 40) % 2));
      fill_logits({logits_.data() + row * stride_, static_cast<size_t>(vocab_size)}, id, token_ids_[row]);
    }
  }

  void run(ExecutionContext& context) override {
    context.ops.token_logprobs(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::token_logprobs(prepare());
    collect();
  }
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(result_).subspan(2 * static_cast<size_t>(row), 2));
  }

 private:
  TokenLogprobsParams prepare() {
    logprobs_.assign(token_ids_.size(), kNaN);
    ranks_.assign(token_ids_.size(), -7);
    return {.logits = logits_.data(),
            .token_ids = token_ids_.data(),
            .logprobs = logprobs_.data(),
            .ranks = ranks_.data(),
            .num_rows = static_cast<int64_t>(token_ids_.size()),
            .vocab_size = vocab_size_,
            .logits_stride = static_cast<int64_t>(stride_)};
  }

  void collect() {
    result_.clear();
    for (size_t r = 0; r < token_ids_.size(); ++r) {
      result_.push_back(std::clamp(logprobs_[r], -1e38f, 1e38f));
      result_.push_back(static_cast<float>(ranks_[r]));
    }
  }

  int32_t vocab_size_;
  size_t stride_;
  std::pmr::vector<float> logits_, logprobs_, result_;
  std::pmr::vector<int32_t> token_ids_, ranks_;
};

}  // namespace

OpEntry token_logprobs_cases() {
  OpEntry entry;
  entry.name = "token_logprobs";
  for (const int32_t vocab_size : kVocabSizes) entry.variants.push_back(std::to_string(vocab_size) + " ids");
  entry.tolerance = {1.5e-6, 1.2e-7};  // as top_k; the logarithm of the mass is at most 7.9 here
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<TokenLogprobsCase>(kVocabSizes[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
