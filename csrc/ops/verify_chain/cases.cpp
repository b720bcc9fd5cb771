// One row of a case is one request: a chain of 0 to 5 drafts over a vocabulary of 700, drafted from 300 of its ids.
#include <algorithm>
#include <array>
#include <limits>

#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr int64_t kVocabSize = 700, kPadding = 4;
constexpr int64_t kDraftVocabSize = 300;
constexpr int64_t kMaxDrafts = 5;

enum Stream : uint64_t { kTarget = 0, kDraft = 16, kShape = 32, kToken = 48, kSeed = 64 };

struct Variant {
  const char* name;
  VerifyMethod method;
  bool draft_laws;
};
constexpr Variant kVariants[] = {
    {"equality", VerifyMethod::kEquality, false},
    {"standard, fixed drafts", VerifyMethod::kStandard, false},
    {"standard, drawn drafts", VerifyMethod::kStandard, true},
    {"block, fixed drafts", VerifyMethod::kBlock, false},
    {"block, drawn drafts", VerifyMethod::kBlock, true},
    {"synthetic", VerifyMethod::kSynthetic, false},
};

int32_t draft_to_target(int64_t id) { return static_cast<int32_t>(2 * id + id / 4); }

class VerifyCase : public OpCase {
 public:
  VerifyCase(const Variant& variant, std::span<const uint64_t> row_ids) : outputs_(row_ids.size()) {
    for (int64_t id = 0; id < kDraftVocabSize; ++id) map_.push_back(draft_to_target(id));
    for (const uint64_t id : row_ids) {
      const int64_t num_drafts = static_cast<int64_t>(row_hash(id, kShape) % (kMaxDrafts + 1));
      for (int64_t place = 0; place <= num_drafts; ++place) add_row(id, place);
      row_begin_.push_back(static_cast<int32_t>(rows_.size()));
    }
    emitted_.resize(rows_.size());
    num_accepted_.resize(row_ids.size());
    params_.method = variant.method;
    SampleParams& target = params_.target;
    target.logits = logits_.data();
    target.rows = rows_.data();
    target.masked_begin = masked_begin_.data();
    target.masked_ids = masked_ids_.data();
    target.num_rows = static_cast<int64_t>(rows_.size());
    target.vocab_size = kVocabSize;
    target.logits_stride = kVocabSize + kPadding;
    params_.row_begin = row_begin_.data();
    params_.draft_token_ids = drafts_.data();
    params_.draft_logits = variant.draft_laws ? draft_logits_.data() : nullptr;
    params_.draft_to_target = map_.data();
    params_.acceptance_rates = rates_.data();
    params_.num_accepted = num_accepted_.data();
    params_.emitted_token_ids = emitted_.data();
    params_.num_requests = static_cast<int64_t>(row_ids.size());
    params_.draft_vocab_size = params_.draft_logits_stride = kDraftVocabSize;
  }

  void run(ExecutionContext& context) override {
    context.ops.verify_chain(params_, context);
    wait_for_device(context);
    gather();
  }
  void run_reference() override {
    reference::verify_chain(params_);
    gather();
  }
  std::span<const std::byte> output(int64_t row) const override { return std::as_bytes(std::span(outputs_[row])); }

 private:
  void add_row(uint64_t id, int64_t place) {
    const uint64_t stream = static_cast<uint64_t>(place);
    const uint64_t hash = row_hash(id, kToken + stream);
    logits_.resize(logits_.size() + kVocabSize + kPadding, 1e30f);
    const std::span<float> logits(logits_.data() + logits_.size() - kVocabSize - kPadding, kVocabSize);
    fill_row(logits, id, kTarget + stream, 3.0f);
    draft_logits_.resize(draft_logits_.size() + kDraftVocabSize);
    const std::span<float> draft_logits(draft_logits_.data() + draft_logits_.size() - kDraftVocabSize, kDraftVocabSize);
    fill_row(draft_logits, id, kDraft + stream, 3.0f);
    // The draft before this row: usually likely under both laws, sometimes -1.
    const int64_t next = static_cast<int64_t>((hash >> 8) % kDraftVocabSize);
    drafts_.push_back(hash % 16 == 0 ? -1 : next_draft_);
    next_draft_ = draft_to_target(next);
    logits[next_draft_] += 8.0f;
    draft_logits[next] += 8.0f;
    if (hash % 23 == 1) std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
    if ((hash >> 24) % 4 == 0) masked_ids_.push_back(static_cast<int32_t>((hash >> 32) % kVocabSize));
    masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    rates_.push_back(static_cast<float>(hash >> 40) * 0x1p-24f);
    constexpr float kTemperatures[] = {0.0f, 0.7f, 1.0f};
    constexpr int32_t kTopK[] = {0, 40};
    const uint64_t choice = row_hash(id, kSeed);
    rows_.push_back({kTemperatures[choice % 3], kTopK[(choice >> 8) % 2], (choice >> 16) % 2 == 0 ? 1.0f : 0.9f, 0.0f,
                     choice, static_cast<int64_t>(choice >> 52) + place});
  }

  void gather() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i].fill(-2);
      outputs_[i][0] = num_accepted_[i];
      std::copy(emitted_.begin() + row_begin_[i], emitted_.begin() + row_begin_[i + 1], outputs_[i].begin() + 1);
    }
  }

  std::pmr::vector<float> logits_, draft_logits_, rates_;
  std::pmr::vector<SamplingRow> rows_;
  std::pmr::vector<int32_t> map_, drafts_, masked_begin_ = {0}, masked_ids_, row_begin_ = {0}, num_accepted_, emitted_;
  int32_t next_draft_ = 0;
  std::pmr::vector<std::array<int32_t, kMaxDrafts + 2>> outputs_;  // accepted, then what was emitted
  VerifyChainParams params_ = {};
};

}  // namespace

OpEntry verify_chain_cases() {
  OpEntry entry;
  entry.name = "verify_chain";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<VerifyCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
