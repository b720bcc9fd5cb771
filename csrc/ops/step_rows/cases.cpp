// One row of a case is one request of a batch; two requests of padding follow. Its output is everything that the
// operator writes for it, counted from its own first row.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr int32_t kPageSize = 4, kStride = 12, kVocabSize = 500, kDraftVocabSize = 120;
constexpr int64_t kPadding = 2, kIdleSlots = 3;

struct Variant {
  const char* name;
  StepRowsMode mode;
  int32_t rows_per_request;
  int32_t draft_step = 0;
  bool observes = true, has_map = true, has_rates = false;
};
constexpr Variant kVariants[] = {
    {"first draft", StepRowsMode::kDraft, 4, 0},
    {"second draft", StepRowsMode::kDraft, 4, 1},
    {"third draft, no map", StepRowsMode::kDraft, 4, 2, true, false},
    {"verify 1 row", StepRowsMode::kVerify, 1},
    {"verify 4 rows", StepRowsMode::kVerify, 4, 0, true, true, true},
    {"verify 17 rows", StepRowsMode::kVerify, 17},
    {"commit 1 row, no draft", StepRowsMode::kCommit, 1, 0, false},
    {"commit 4 rows", StepRowsMode::kCommit, 4},
};

enum Stream : uint64_t { kLength, kToken, kDrafts, kSampling, kPages, kEmitted };

template <typename T>
using Array = std::pmr::vector<T>;

class StepRowsCase : public OpCase {
 public:
  StepRowsCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant), row_ids_(row_ids.begin(), row_ids.end()) {
    for (int32_t id = 0; id < kDraftVocabSize; ++id) map_.push_back(4 * id + 3);
    for (int32_t place = 0; place + 1 < variant.rows_per_request; ++place) rates_.push_back(1.0f / (place + 2));
  }

  void run(ExecutionContext& context) override {
    const StepRowsParams params = prepare();
    context.ops.step_rows(params, context);
    wait_for_device(context);
    gather();
  }
  void run_reference() override {
    reference::step_rows(prepare());
    gather();
  }
  std::span<const std::byte> output(int64_t row) const override { return std::as_bytes(std::span(outputs_[row])); }

 private:
  int64_t num_real() const { return static_cast<int64_t>(row_ids_.size()); }
  int64_t num_requests() const { return num_real() + kPadding; }
  // Slots in another order than the batch, with idle ones between them.
  int32_t slot_of(int64_t request) const { return static_cast<int32_t>(num_real() - 1 - request + kIdleSlots); }

  void add_request(uint64_t id, int64_t request) {
    const int32_t rows = variant_.rows_per_request;
    const auto slot = static_cast<size_t>(slot_of(request));
    const auto draw = [id](uint64_t stream, uint64_t bound) {
      return static_cast<int32_t>(row_hash(id, stream) % bound);
    };
    request_slots_.push_back(slot_of(request));
    request_of_slot_[slot] = static_cast<int32_t>(request);
    num_drafts_.push_back(draw(kDrafts, static_cast<uint64_t>(rows)));
    drawn_ids_.push_back(draw(kToken, kDraftVocabSize) - 1);
    length_[slot] = 1 + draw(kLength, 24);
    last_token_[slot] = draw(kToken + 100, kVocabSize);
    max_entries_[slot] = length_[slot] + draw(kLength + 100, 6);                 // some rows lie behind them
    first_draft_entry_[slot] = std::min(draw(kDrafts + 100, 4), length_[slot]);  // 0: not followed
    sampling_[slot] = {0.25f * static_cast<float>(1 + draw(kSampling, 4)),
                       draw(kSampling + 100, 9),
                       0.9f,
                       0.1f,
                       row_hash(id, kSampling),
                       77};
    for (int32_t page = 0; page < kStride; ++page) page_table_.push_back(draw(kPages + 100 * page, 1000));
    const int32_t accepted = draw(kEmitted, static_cast<uint64_t>(num_drafts_.back()) + 2) - 1;
    num_accepted_.push_back(accepted);
    for (int32_t place = 0; place < rows; ++place) {
      emitted_.push_back(place <= accepted ? draw(kEmitted + 100 + static_cast<uint64_t>(place), kVocabSize) : -1);
      draft_ids_.push_back(draw(kDrafts + 200 + static_cast<uint64_t>(place), kVocabSize));
    }
  }

  void add_padding() {
    request_slots_.push_back(-1);
    num_drafts_.push_back(variant_.rows_per_request - 1);
    drawn_ids_.push_back(1);
    num_accepted_.push_back(-1);
    page_table_.resize(page_table_.size() + kStride, 0);
    emitted_.resize(emitted_.size() + static_cast<size_t>(variant_.rows_per_request), -1);
    draft_ids_.resize(emitted_.size(), 9);
  }

  StepRowsParams prepare() {
    const auto num_slots = static_cast<size_t>(num_real() + kIdleSlots);
    for (auto* list :
         {&request_slots_, &num_drafts_, &drawn_ids_, &num_accepted_, &page_table_, &emitted_, &draft_ids_}) {
      list->clear();
    }
    for (auto* list : {&length_, &last_token_, &max_entries_, &first_draft_entry_}) list->assign(num_slots, 5);
    request_of_slot_.assign(num_slots, -1);
    last_rows_.assign(num_slots, -3);
    sampling_.assign(num_slots, {});
    for (int64_t i = 0; i < num_real(); ++i) add_request(row_ids_[static_cast<size_t>(i)], i);
    for (int64_t i = 0; i < kPadding; ++i) add_padding();
    const auto rows = static_cast<size_t>(num_requests() * variant_.rows_per_request);
    token_ids_.assign(rows, -9);
    positions_.assign(rows, -9);
    kv_slots_.assign(rows, -9);
    row_sampling_.assign(rows, {});
    row_rates_.assign(rows, -9.0f);
    for (auto* list : {&row_begin_, &kv_begin_, &kv_length_}) list->assign(static_cast<size_t>(num_requests()) + 1, 0);
    results_.assign(rows + static_cast<size_t>(num_requests()), -9);
    return params();
  }

  StepRowsParams params() {
    StepRowsParams params{};
    params.mode = variant_.mode;
    params.state = {length_.data(),   last_token_.data(),     max_entries_.data(), first_draft_entry_.data(),
                    sampling_.data(), num_real() + kIdleSlots};
    params.rows = {variant_.observes ? token_ids_.data() : nullptr,
                   positions_.data(),
                   kv_slots_.data(),
                   row_begin_.data(),
                   kv_begin_.data(),
                   kv_length_.data(),
                   row_sampling_.data(),
                   variant_.has_rates ? row_rates_.data() : nullptr};
    params.request_slots = request_slots_.data();
    params.num_drafts = num_drafts_.data();
    params.page_table = page_table_.data();
    params.num_requests = num_requests();
    params.rows_per_request = variant_.rows_per_request;
    params.page_table_stride = kStride;
    params.page_size = kPageSize;
    params.draft_step = variant_.draft_step;
    params.draw_drafts = variant_.has_map;
    params.drawn_ids = drawn_ids_.data();
    params.draft_to_target = variant_.has_map ? map_.data() : nullptr;
    params.draft_token_ids = draft_ids_.data();
    params.rates = rates_.data();
    params.num_accepted = num_accepted_.data();
    params.emitted_token_ids = emitted_.data();
    params.results = results_.data();
    params.request_of_slot = variant_.observes ? request_of_slot_.data() : nullptr;
    params.last_rows = last_rows_.data();
    return params;
  }

  void gather() {
    outputs_.assign(row_ids_.size(), {});
    for (size_t i = 0; i < outputs_.size(); ++i) gather_request(i, outputs_[i]);
    // What is written for padding, and for the request that it follows, belongs to every row.
    const auto last = static_cast<size_t>(num_requests());
    for (auto& output : outputs_) {
      output.push_back(row_begin_[last] - row_begin_[last - 1]);
      for (size_t row = token_ids_.size() - static_cast<size_t>(kPadding); row < token_ids_.size(); ++row) {
        output.insert(output.end(), {token_ids_[row], static_cast<int32_t>(kv_slots_[row]), draft_ids_[row]});
      }
      output.push_back(std::count(last_rows_.begin(), last_rows_.begin() + kIdleSlots, -1));
    }
  }

  void gather_request(size_t i, std::vector<int32_t>& output) const {
    const size_t rows = variant_.mode == StepRowsMode::kDraft ? 1 : static_cast<size_t>(variant_.rows_per_request);
    const auto slot = static_cast<size_t>(slot_of(static_cast<int64_t>(i)));
    for (size_t row = i * rows; row < (i + 1) * rows; ++row) {
      const SamplingRow& law = row_sampling_[row];
      output.insert(output.end(), {token_ids_[row], positions_[row], static_cast<int32_t>(kv_slots_[row]),
                                   bits(law.top_p), bits(law.temperature), law.top_k, static_cast<int32_t>(law.seed),
                                   static_cast<int32_t>(law.position), bits(row_rates_[row])});
    }
    const auto width = static_cast<size_t>(variant_.rows_per_request);
    output.insert(output.end(), draft_ids_.begin() + i * width, draft_ids_.begin() + (i + 1) * width);
    output.insert(output.end(), results_.begin() + i * (width + 1), results_.begin() + (i + 1) * (width + 1));
    output.insert(output.end(),
                  {row_begin_[i + 1] - row_begin_[i], kv_begin_[i], kv_length_[i], length_[slot], last_token_[slot]});
    const int32_t last = last_rows_[slot];
    output.push_back(last < 0 ? last : last - static_cast<int32_t>(i * width));
  }

  static int32_t bits(float value) {
    int32_t result;
    std::memcpy(&result, &value, sizeof(result));
    return result;
  }

  Variant variant_;
  std::vector<uint64_t> row_ids_;
  Array<int32_t> map_, request_slots_, request_of_slot_, num_drafts_, drawn_ids_, num_accepted_, page_table_, emitted_,
      draft_ids_, length_, last_token_, max_entries_, first_draft_entry_, last_rows_, token_ids_, positions_,
      row_begin_, kv_begin_, kv_length_, results_;
  Array<int64_t> kv_slots_;
  Array<float> rates_, row_rates_;
  Array<SamplingRow> sampling_, row_sampling_;
  std::vector<std::vector<int32_t>> outputs_;
};

}  // namespace

OpEntry step_rows_cases() {
  OpEntry entry;
  entry.name = "step_rows";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<StepRowsCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
