// Rows of logits lie in another order than their ProcessRows, each with padding behind the vocabulary that must stay.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr size_t kPadding = 3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Variant {
  const char* name;
  int32_t vocab_size;
  bool has_penalties, has_bias, has_mask;
};
constexpr Variant kVariants[] = {
    {"penalties, 700 ids", 700, true, false, false}, {"bias, 700 ids", 700, false, true, false},
    {"mask, 1030 ids", 1030, false, false, true},    {"mask, 64 ids", 64, false, false, true},
    {"everything, 5 ids", 5, true, true, true},      {"everything, 2500 ids", 2500, true, true, true},
};

enum Stream : uint64_t { kLogits, kKind, kPath, kHistory = 1000, kBias = 10'000, kMask = 20'000 };

// Not finite values become finite ones that no sum reaches, because the comparison with the reference takes
// differences.
float marked(float x) { return std::isnan(x) ? 2e38f : std::clamp(x, -1e38f, 1e38f); }

class ProcessLogitsCase : public OpCase {
 public:
  ProcessLogitsCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        row_ids_(row_ids.begin(), row_ids.end()),
        stride_(static_cast<size_t>(variant.vocab_size) + kPadding) {
    for (size_t i = 0; i < row_ids_.size(); ++i) add_row(row_ids_[i], i);
  }

  void run(ExecutionContext& context) override {
    const ProcessLogitsParams params = prepare();
    context.ops.process_logits(params, context);
    wait_for_device(context);
    for (float& x : logits_) x = marked(x);
  }
  void run_reference() override {
    reference::process_logits(prepare());
    for (float& x : logits_) x = marked(x);
  }
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(logits_).subspan(place_of(static_cast<size_t>(row)) * stride_, stride_));
  }

 private:
  size_t place_of(size_t row) const { return row_ids_.size() - 1 - row; }

  void add_row(uint64_t id, size_t row) {
    const uint64_t hash = row_hash(id, kKind);
    ProcessRow rules = {1.0f, 0.0f, 0.0f, 0, 0, 0, 0, 0, 0, -1};
    if (variant_.has_penalties) {
      rules.repetition_penalty = 0.5f + 0.25f * static_cast<float>(hash % 6);
      rules.frequency_penalty = -1.0f + 0.3f * static_cast<float>((hash >> 8) % 8);
      rules.presence_penalty = -1.0f + 0.3f * static_cast<float>((hash >> 16) % 8);
      add_history(id, &rules);
      add_path(id, &rules);
    }
    if (variant_.has_bias) add_biases(id, &rules);
    if (variant_.has_mask && (hash >> 24) % 5 > 0) add_mask(id, &rules);
    rows_.push_back(rules);
    row_indices_.push_back(static_cast<int32_t>(place_of(row)));
  }

  // Ids beyond the vocabulary stand in every list.
  int32_t id_limit() const { return variant_.vocab_size + 2; }

  void add_history(uint64_t id, ProcessRow* rules) {
    rules->history_begin = static_cast<int32_t>(history_.size());
    for (int32_t token = id_limit() - 1; token >= 0; --token) {
      const uint64_t hash = row_hash(id, kHistory + static_cast<uint64_t>(token));
      if (hash % 4 > 0) continue;
      history_.push_back({token, static_cast<int32_t>((hash >> 8) % 4), static_cast<int32_t>((hash >> 16) % 2)});
    }
    rules->history_end = static_cast<int32_t>(history_.size());
  }

  void add_path(uint64_t id, ProcessRow* rules) {
    rules->path_begin = static_cast<int32_t>(path_ids_.size());
    const uint64_t length = row_hash(id, kPath) % 5 == 0 ? kMaxPathLength : row_hash(id, kPath) % 7;
    for (uint64_t place = 0; place < length; ++place) {
      const uint64_t hash = row_hash(id, kPath + 1 + place);
      const auto range = static_cast<uint64_t>((hash >> 32) % 2 == 0 ? id_limit() + 1 : 9);
      path_ids_.push_back(static_cast<int32_t>(hash % range) - 1);
    }
    rules->path_end = static_cast<int32_t>(path_ids_.size());
  }

  void add_biases(uint64_t id, ProcessRow* rules) {
    rules->bias_begin = static_cast<int32_t>(biases_.size());
    for (int32_t token = -1; token < id_limit(); ++token) {
      const uint64_t hash = row_hash(id, kBias + static_cast<uint64_t>(token + 1));
      if (hash % 9 == 0) biases_.push_back({token, 0.125f * static_cast<float>((hash >> 8) % 100) - 6.0f});
    }
    rules->bias_end = static_cast<int32_t>(biases_.size());
  }

  void add_mask(uint64_t id, ProcessRow* rules) {
    rules->mask_begin = static_cast<int32_t>(masks_.size());
    for (int32_t word = 0; word < (variant_.vocab_size + 31) / 32; ++word) {
      const uint64_t hash = row_hash(id, kMask + static_cast<uint64_t>(word));
      const auto bits = static_cast<uint32_t>(hash >> 32);
      masks_.push_back(hash % 4 == 0 ? 0u : hash % 4 == 1 ? ~0u : bits);
    }
  }

  ProcessLogitsParams prepare() {
    logits_.assign(row_ids_.size() * stride_, 0.0f);
    for (size_t i = 0; i < row_ids_.size(); ++i) {
      fill_row({logits_.data() + place_of(i) * stride_, stride_}, row_ids_[i], kLogits, 12.0f);
      if (row_hash(row_ids_[i], kKind) % 3 > 0) continue;
      const float special[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0f};
      for (size_t j = 0; j < stride_; j += 5) logits_[place_of(i) * stride_ + j] = special[j / 5 % 4];
    }
    return {.logits = logits_.data(),
            .rows = rows_.data(),
            .history = history_.data(),
            .path_ids = path_ids_.data(),
            .biases = biases_.data(),
            .masks = masks_.data(),
            .row_indices = row_indices_.data(),
            .num_rows = static_cast<int64_t>(row_ids_.size()),
            .vocab_size = variant_.vocab_size,
            .logits_stride = static_cast<int64_t>(stride_)};
  }

  Variant variant_;
  std::vector<uint64_t> row_ids_;
  size_t stride_;
  std::pmr::vector<float> logits_;
  std::pmr::vector<ProcessRow> rows_;
  std::pmr::vector<TokenCount> history_;
  std::pmr::vector<int32_t> path_ids_, row_indices_;
  std::pmr::vector<TokenBias> biases_;
  std::pmr::vector<uint32_t> masks_;
};

}  // namespace

OpEntry process_logits_cases() {
  OpEntry entry;
  entry.name = "process_logits";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  // Four roundings of values of up to 100: 12 * 1.75 and 67 times a frequency penalty of 1.1.
  entry.tolerance = {1.6e-5, 1.2e-7};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<ProcessLogitsCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
