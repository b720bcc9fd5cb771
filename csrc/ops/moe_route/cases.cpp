#include <cmath>
#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  const char* name;
  int32_t num_experts, top_k, num_groups, num_groups_chosen;
  MoeScoring scoring;
  bool normalise, corrected;
  float scale;
};

constexpr Variant kVariants[] = {
    {"softmax, 8 of 128, normalised", 128, 8, 1, 1, MoeScoring::kSoftmax, true, false, 1.0f},
    {"softmax, 2 of 9", 9, 2, 1, 1, MoeScoring::kSoftmax, false, false, 1.0f},
    {"softmax, all of 5, normalised", 5, 5, 1, 1, MoeScoring::kSoftmax, true, false, 1.0f},
    {"sigmoid, 8 of 256, 4 of 8 groups", 256, 8, 8, 4, MoeScoring::kSigmoid, true, true, 2.5f},
    {"sigmoid, 8 of 384", 384, 8, 1, 1, MoeScoring::kSigmoid, true, true, 2.827f},
    {"sigmoid, 3 of 20, 5 of 20 groups of one", 20, 3, 20, 5, MoeScoring::kSigmoid, false, false, 1.0f},
};

enum : uint64_t { kLogitStream, kCorrectionStream, kKindStream };

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A row's output: ids (as floats, which hold them exactly), weights, and for each of them 1 if the row stands among the
// rows of that expert at the place that it was given.
class MoeRouteCase : public OpCase {
 public:
  MoeRouteCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        logits_(num_rows_ * static_cast<size_t>(variant.num_experts)),
        correction_(static_cast<size_t>(variant.num_experts)) {
    fill_row(correction_, 0, kCorrectionStream, 0.3f);
    const auto size = static_cast<size_t>(variant.num_experts);
    for (size_t r = 0; r < num_rows_; ++r) {
      const auto row = std::span(logits_).subspan(r * size, size);
      fill_row(row, row_ids[r], kLogitStream, 5.0f);
      const uint64_t kind = row_hash(row_ids[r], kKindStream) % 4;
      for (float& x : row) x = kind == 0 ? std::trunc(x / 2) : x;  // ties
      if (kind == 1 && row.size() > 8) row[row_ids[r] % row.size()] = -std::numeric_limits<float>::infinity();
    }
  }

  void run(ExecutionContext& context) override {
    context.ops.moe_route(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::moe_route(prepare());
    collect();
  }
  std::span<const std::byte> output(int64_t row) const override {
    const size_t size = 3 * static_cast<size_t>(variant_.top_k);
    return std::as_bytes(std::span(result_).subspan(static_cast<size_t>(row) * size, size));
  }

 private:
  MoeRouteParams prepare() {
    const size_t num_assignments = num_rows_ * static_cast<size_t>(variant_.top_k);
    expert_ids_.assign(num_assignments, -7);
    weights_.assign(num_assignments, kNaN);
    expert_begin_.assign(static_cast<size_t>(variant_.num_experts) + 1, -7);
    sorted_rows_.assign(num_assignments, -7);
    places_.assign(num_assignments, -7);
    return {.logits = logits_.data(),
            .correction = variant_.corrected ? correction_.data() : nullptr,
            .expert_ids = expert_ids_.data(),
            .weights = weights_.data(),
            .expert_begin = expert_begin_.data(),
            .sorted_rows = sorted_rows_.data(),
            .places = places_.data(),
            .num_rows = static_cast<int64_t>(num_rows_),
            .num_experts = variant_.num_experts,
            .top_k = variant_.top_k,
            .num_groups = variant_.num_groups,
            .num_groups_chosen = variant_.num_groups_chosen,
            .scoring = variant_.scoring,
            .normalise = variant_.normalise,
            .scale = variant_.scale};
  }

  bool is_placed(size_t assignment) const {
    const int32_t expert = expert_ids_[assignment], place = places_[assignment];
    if (expert < 0 || expert >= variant_.num_experts) return false;
    const auto begin = expert_begin_.begin() + expert;
    return place >= begin[0] && place < begin[1] && expert_begin_.front() == 0 &&
           expert_begin_.back() == static_cast<int32_t>(places_.size()) &&
           sorted_rows_[static_cast<size_t>(place)] ==
               static_cast<int32_t>(assignment / static_cast<size_t>(variant_.top_k));
  }

  void collect() {
    result_.clear();
    const auto k = static_cast<size_t>(variant_.top_k);
    for (size_t r = 0; r < num_rows_; ++r) {
      for (size_t i = r * k; i < (r + 1) * k; ++i) result_.push_back(static_cast<float>(expert_ids_[i]));
      for (size_t i = r * k; i < (r + 1) * k; ++i) result_.push_back(weights_[i]);
      for (size_t i = r * k; i < (r + 1) * k; ++i) result_.push_back(is_placed(i) ? 1.0f : 0.0f);
    }
  }

  Variant variant_;
  size_t num_rows_;
  std::pmr::vector<float> logits_, correction_, weights_, result_;
  std::pmr::vector<int32_t> expert_ids_, expert_begin_, sorted_rows_, places_;
};

}  // namespace

OpEntry moe_route_cases() {
  OpEntry entry;
  entry.name = "moe_route";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  // Ids are exact. Weights: exp is good to 2^-22, the sum of up to 128 of them rounds by 2^-24 each, in 16 chains.
  entry.tolerance = {1e-30, 1.2e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<MoeRouteCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
