// One row of a case is one request: a random tree of 0 to 11 drafts over a vocabulary of 700, drafted from 300 of its
// ids. Drafts are likely under both laws, so walks go deep.
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
constexpr int32_t kMaxRows = 12;

enum Stream : uint64_t { kTarget = 0, kDraft = 16, kShape = 32, kToken = 48, kSeed = 64 };

struct Variant {
  const char* name;
  TreeVerifyMethod method;
  bool draft_laws;
};
constexpr Variant kVariants[] = {
    {"equality", TreeVerifyMethod::kEquality, false},
    {"standard, fixed drafts", TreeVerifyMethod::kStandard, false},
    {"standard, drawn drafts", TreeVerifyMethod::kStandard, true},
};

int32_t draft_to_target(int64_t id) { return static_cast<int32_t>(2 * id + id / 4); }

class VerifyTreeCase : public OpCase {
 public:
  VerifyTreeCase(const Variant& variant, std::span<const uint64_t> row_ids) : outputs_(row_ids.size()) {
    for (int64_t id = 0; id < kDraftVocabSize; ++id) map_.push_back(draft_to_target(id));
    for (const uint64_t id : row_ids) add_request(id);
    path_.resize(rows_.size());
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
    params_.token_ids = tokens_.data();
    params_.first_child = first_child_.data();
    params_.next_sibling = next_sibling_.data();
    params_.draft_logits = variant.draft_laws ? draft_logits_.data() : nullptr;
    params_.draft_rows = draft_rows_.data();
    params_.draft_to_target = map_.data();
    params_.num_accepted = num_accepted_.data();
    params_.path_rows = path_.data();
    params_.emitted_token_ids = emitted_.data();
    params_.num_requests = static_cast<int64_t>(row_ids.size());
    params_.draft_vocab_size = params_.draft_logits_stride = kDraftVocabSize;
  }

  void run(ExecutionContext& context) override {
    context.ops.verify_tree(params_, context);
    wait_for_device(context);
    gather();
  }
  void run_reference() override {
    reference::verify_tree(params_);
    gather();
  }
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(outputs_[static_cast<size_t>(row)]));
  }

 private:
  void add_request(uint64_t id) {
    const size_t begin = rows_.size();
    const int32_t num_rows = 1 + static_cast<int32_t>(row_hash(id, kShape) % kMaxRows);
    std::array<int32_t, kMaxRows> depths = {}, last_child;
    last_child.fill(-1);
    first_child_.resize(begin + static_cast<size_t>(num_rows), -1);
    next_sibling_.resize(begin + static_cast<size_t>(num_rows), -1);
    for (int32_t r = 0; r < num_rows; ++r) {
      int32_t parent = -1;
      if (r > 0) {
        parent = static_cast<int32_t>(row_hash(id, kShape + static_cast<uint64_t>(r)) % 4);
        parent = std::max(0, r - 1 - parent);
        const size_t before = begin + static_cast<size_t>(last_child[parent] < 0 ? parent : last_child[parent]);
        (last_child[parent] < 0 ? first_child_ : next_sibling_)[before] = r;
        last_child[parent] = r;
        depths[r] = depths[parent] + 1;
      }
      add_row(id, r, depths[r]);
      if (r > 0) add_draft(id, r, begin + static_cast<size_t>(parent));
    }
    row_begin_.push_back(static_cast<int32_t>(rows_.size()));
  }

  void add_row(uint64_t id, int32_t row, int32_t depth) {
    const uint64_t stream = static_cast<uint64_t>(row), hash = row_hash(id, kToken + stream);
    logits_.resize(logits_.size() + kVocabSize + kPadding, 1e30f);
    const std::span<float> logits(logits_.data() + logits_.size() - kVocabSize - kPadding, kVocabSize);
    fill_row(logits, id, kTarget + stream, 3.0f);
    draft_logits_.resize(draft_logits_.size() + kDraftVocabSize);
    fill_row({draft_logits_.data() + draft_logits_.size() - kDraftVocabSize, kDraftVocabSize}, id, kDraft + stream,
             3.0f);
    if (hash % 23 == 1) std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
    if ((hash >> 24) % 4 == 0) masked_ids_.push_back(static_cast<int32_t>((hash >> 32) % kVocabSize));
    masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    draft_rows_.push_back((hash >> 8) % 5 == 0 ? -1 : static_cast<int32_t>(rows_.size()));
    tokens_.push_back(-1);
    constexpr float kTemperatures[] = {0.0f, 0.7f, 1.0f};
    constexpr int32_t kTopK[] = {0, 40};
    const uint64_t choice = row_hash(id, kSeed);
    rows_.push_back({kTemperatures[choice % 3], kTopK[(choice >> 8) % 2], (choice >> 16) % 2 == 0 ? 1.0f : 0.9f, 0.0f,
                     choice, static_cast<int64_t>(choice >> 52) + depth});
  }

  // What the newest row was fed, made likely in the laws of its parent; sometimes -1 or a sibling's.
  void add_draft(uint64_t id, int32_t row, size_t parent) {
    const uint64_t hash = row_hash(id, kToken + 16 + static_cast<uint64_t>(row));
    const auto draft = static_cast<int64_t>((hash >> 8) % (hash % 8 == 0 ? 2 : kDraftVocabSize));
    tokens_.back() = (hash >> 40) % 16 == 0 ? -1 : draft_to_target(draft);
    logits_[parent * (kVocabSize + kPadding) + static_cast<size_t>(draft_to_target(draft))] += 7.5f;
    draft_logits_[parent * kDraftVocabSize + static_cast<size_t>(draft)] += 7.5f;
  }

  void gather() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i].fill(-2);
      outputs_[i][0] = num_accepted_[i];
      const int32_t begin = row_begin_[i], end = row_begin_[i + 1];
      std::copy(path_.begin() + begin, path_.begin() + end, outputs_[i].begin() + 1);
      std::copy(emitted_.begin() + begin, emitted_.begin() + end, outputs_[i].begin() + 1 + kMaxRows);
    }
  }

  std::pmr::vector<float> logits_, draft_logits_;
  std::pmr::vector<SamplingRow> rows_;
  std::pmr::vector<int32_t> map_, tokens_, first_child_, next_sibling_, draft_rows_, masked_begin_ = {0}, masked_ids_;
  std::pmr::vector<int32_t> row_begin_ = {0}, num_accepted_, path_, emitted_;
  std::vector<std::array<int32_t, 1 + 2 * kMaxRows>> outputs_;  // accepted, the path, what was emitted
  VerifyTreeParams params_ = {};
};

}  // namespace

OpEntry verify_tree_cases() {
  OpEntry entry;
  entry.name = "verify_tree";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<VerifyTreeCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
