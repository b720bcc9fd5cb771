// One row of a case is one request: candidates of an expansion of depth levels, the best `top` of each level expanded.
#include <algorithm>
#include <array>
#include <cmath>

#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

enum Stream : uint64_t { kScore, kShape, kParent, kToken };

struct Variant {
  const char* name;
  int32_t top, depth, max_rows;
  TreeOrder order;
};
constexpr Variant kVariants[] = {
    {"top 1, depth 5, by score", 1, 5, 6, TreeOrder::kByScore},
    {"top 4, depth 3, by candidate", 4, 3, 12, TreeOrder::kByCandidate},
    {"top 10, depth 7, by score", 10, 7, 64, TreeOrder::kByScore},
    {"top 10, depth 10, by candidate", 10, 10, kMaxTreeRows, TreeOrder::kByCandidate},
};

class BuildTreeCase : public OpCase {
 public:
  BuildTreeCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant), mask_words_((variant.max_rows + 63) / 64), num_requests_(row_ids.size()) {
    for (const uint64_t id : row_ids) add_request(id);
    num_nodes_.resize(num_requests_);
    const size_t num_rows = static_cast<size_t>(row_begin_.back());
    for (auto& column : columns_) column.resize(num_rows);
    mask_.resize(num_rows * static_cast<size_t>(mask_words_));
  }

  void run(ExecutionContext& context) override {
    context.ops.build_tree(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::build_tree(prepare());
    collect();
  }
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(outputs_[static_cast<size_t>(row)]));
  }

 private:
  void add_request(uint64_t id) {
    const uint64_t shape = row_hash(id, kShape);
    const int32_t top = variant_.top, begin = candidate_begin_.back();
    const int32_t num_candidates =
        shape % 16 == 0 ? static_cast<int32_t>(shape >> 32) % 4 & top : top + (variant_.depth - 1) * top * top;
    std::vector<float> losses(static_cast<size_t>(num_candidates));
    fill_row(losses, id, kScore, 2.0f);
    for (int32_t c = 0; c < num_candidates; ++c) {
      // Level n > 1: `top` candidates of the level before it, chosen at random, have `top` children each.
      const int32_t expansion = (c - top) / top,
                    level_begin = expansion < top ? 0 : (expansion / top - 1) * top * top + top;
      const int32_t level_size = expansion < top ? top : top * top;
      const int32_t offset = static_cast<int32_t>(row_hash(id, kParent + 4 * static_cast<uint64_t>(expansion)) >> 33);
      const int32_t parent = c < top ? -1 : level_begin + offset % level_size;
      // Quarters make ties; one request in eight has scores that rise towards the leaves.
      float loss = std::abs(losses[static_cast<size_t>(c)]);
      if (shape >> 8 & 1) loss = std::round(loss * 4) / 4;
      if ((shape >> 9) % 8 == 0) loss = 1.0f - loss;
      scores_.push_back((parent < 0 ? 0.0f : scores_[static_cast<size_t>(begin + parent)]) - loss);
      parents_.push_back(row_hash(id, kParent + 4 * static_cast<uint64_t>(c) + 1) % 64 == 0 ? c : parent);
      tokens_.push_back(static_cast<int32_t>(row_hash(id, kToken + 4 * static_cast<uint64_t>(c)) % 32000));
    }
    candidate_begin_.push_back(static_cast<int32_t>(scores_.size()));
    roots_.push_back(static_cast<int32_t>(shape >> 40));
    const bool is_plain = (shape >> 16) % 8 == 0;
    const int32_t num_rows =
        is_plain ? 1 : 1 + static_cast<int32_t>((shape >> 20) % static_cast<uint64_t>(variant_.max_rows));
    row_begin_.push_back(row_begin_.back() + num_rows);
  }

  BuildTreeParams prepare() {
    std::fill(num_nodes_.begin(), num_nodes_.end(), -7);
    for (auto& column : columns_) std::fill(column.begin(), column.end(), -7);
    std::fill(mask_.begin(), mask_.end(), 7);
    return {.scores = scores_.data(),
            .parents = parents_.data(),
            .token_ids = tokens_.data(),
            .candidate_begin = candidate_begin_.data(),
            .root_token_ids = roots_.data(),
            .row_begin = row_begin_.data(),
            .num_nodes = num_nodes_.data(),
            .row_token_ids = columns_[0].data(),
            .row_candidates = columns_[1].data(),
            .row_parents = columns_[2].data(),
            .first_child = columns_[3].data(),
            .next_sibling = columns_[4].data(),
            .depths = columns_[5].data(),
            .ancestor_mask = mask_.data(),
            .num_requests = static_cast<int64_t>(num_requests_),
            .mask_words = mask_words_,
            .order = variant_.order};
  }

  void collect() {
    outputs_.assign(num_requests_, {});
    for (size_t i = 0; i < num_requests_; ++i) {
      const auto begin = static_cast<size_t>(row_begin_[i]), end = static_cast<size_t>(row_begin_[i + 1]);
      std::vector<uint64_t>& out = outputs_[i];
      out.push_back(static_cast<uint64_t>(num_nodes_[i]));
      for (const auto& column : columns_) {
        for (size_t r = begin; r < end; ++r) out.push_back(static_cast<uint64_t>(column[r]));
      }
      out.insert(out.end(), mask_.begin() + static_cast<int64_t>(begin) * mask_words_,
                 mask_.begin() + static_cast<int64_t>(end) * mask_words_);
    }
  }

  Variant variant_;
  int32_t mask_words_;
  size_t num_requests_;
  std::pmr::vector<float> scores_;
  std::pmr::vector<int32_t> parents_, tokens_, candidate_begin_ = {0}, roots_, row_begin_ = {0}, num_nodes_;
  std::array<std::pmr::vector<int32_t>, 6> columns_;
  std::pmr::vector<uint64_t> mask_;
  std::vector<std::vector<uint64_t>> outputs_;
};

}  // namespace

OpEntry build_tree_cases() {
  OpEntry entry;
  entry.name = "build_tree";
  for (const Variant& variant : kVariants) entry.variants.push_back(variant.name);
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<BuildTreeCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
