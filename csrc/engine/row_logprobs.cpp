#include "engine/row_logprobs.h"

#include <algorithm>
#include <utility>

#include "ops/ops.h"

namespace eagle31rt {

int32_t num_prompt_logprob_rows(const ScheduledRequest& entry) {
  const RequestState& request = *entry.request;
  if (!request.wants_prompt_logprobs()) return 0;
  return std::min(entry.num_rows, request.prompt_length - 1 - request.num_computed);
}

RowLogprobs::RowLogprobs(Device& device) : device_(device), upload_(device), raw_(device), results_(device) {}

void RowLogprobs::clear() {
  groups_.clear();
  for (auto* list : {&rows_, &token_ids_, &emitted_rows_}) list->clear();
  num_top_ = 0;
}

void RowLogprobs::add_output(ScheduledRequest& entry, int64_t first_row) {
  const int32_t num_top = entry.request->params.num_logprobs;
  if (num_top >= 0) add(entry, first_row, static_cast<size_t>(entry.num_drafts) + 1, num_top, /*is_prompt=*/false);
}

void RowLogprobs::add_prompt(ScheduledRequest& entry, int64_t first_row) {
  const auto count = static_cast<size_t>(num_prompt_logprob_rows(entry));
  if (count > 0) add(entry, first_row, count, entry.request->params.num_prompt_logprobs, /*is_prompt=*/true);
}

void RowLogprobs::add(ScheduledRequest& entry, int64_t first_row, size_t count, int32_t num_top, bool is_prompt) {
  groups_.push_back({&entry, rows_.size(), count, num_top, is_prompt});
  num_top_ = std::max(num_top_, num_top);
  const RequestState& request = *entry.request;
  for (size_t i = 0; i < count; ++i) {
    const auto row = static_cast<int32_t>(first_row + static_cast<int64_t>(i));
    rows_.push_back(row);
    token_ids_.push_back(is_prompt ? request.tokens[static_cast<size_t>(request.num_computed) + i + 1] : -1);
    emitted_rows_.push_back(is_prompt ? -1 : row);
  }
}

void RowLogprobs::keep(const float* logits, int64_t vocab_size, ExecutionContext& context) {
  if (empty()) return;
  vocab_size_ = vocab_size;
  upload_.clear();
  rows_at_ = upload_.add(rows_);
  token_ids_at_ = upload_.add(token_ids_);
  emitted_rows_at_ = upload_.add(emitted_rows_);
  upload_.send();
  const auto num_rows = static_cast<int64_t>(rows_.size());
  float* raw = raw_.get(num_rows * vocab_size);
  results_.get(num_rows * 3 * (1 + num_top_));
  context.ops.gather_rows({.input = logits,
                           .indices = upload_.at(rows_at_),
                           .output = raw,
                           .num_rows = num_rows,
                           .num_columns = vocab_size,
                           .input_stride = vocab_size,
                           .output_stride = vocab_size},
                          context);
  if (num_top_ == 0) return;
  context.ops.top_k({.logits = raw,
                     .draft_to_target = nullptr,
                     .values = results_.data() + top_values_at(),
                     .token_ids = reinterpret_cast<int32_t*>(results_.data() + top_ids_at()),
                     .log_probabilities = results_.data() + top_logprobs_at(),
                     .num_rows = num_rows,
                     .vocab_size = vocab_size,
                     .logits_stride = vocab_size,
                     .k = num_top_},
                    context);
}

void RowLogprobs::choose(const int32_t* emitted, ExecutionContext& context) {
  if (empty()) return;
  const size_t num_rows = rows_.size();
  float* token_ids = results_.data();
  device_.copy(token_ids, upload_.at(token_ids_at_), num_rows * sizeof(int32_t));
  context.ops.gather_rows({.input = reinterpret_cast<const float*>(emitted),
                           .indices = upload_.at(emitted_rows_at_),
                           .output = token_ids,
                           .num_rows = static_cast<int64_t>(num_rows),
                           .num_columns = 1,
                           .input_stride = 1,
                           .output_stride = 1},
                          context);
  context.ops.token_logprobs({.logits = raw_.data(),
                              .token_ids = reinterpret_cast<const int32_t*>(token_ids),
                              .logprobs = results_.data() + num_rows,
                              .ranks = reinterpret_cast<int32_t*>(results_.data() + 2 * num_rows),
                              .num_rows = static_cast<int64_t>(num_rows),
                              .vocab_size = vocab_size_,
                              .logits_stride = vocab_size_},
                             context);
  const size_t num_bytes = top_values_at() * sizeof(float);
  if (host_results_.size() < num_bytes) host_results_ = HostBuffer(device_, num_bytes);
  device_.copy_to_host(host_results_.data(), results_.data(), num_bytes);
}

void RowLogprobs::take() {
  for (const Group& group : groups_) {
    RequestState& request = *group.entry->request;
    if (group.is_prompt) {
      auto& results = request.prompt_logprobs;
      results.resize(static_cast<size_t>(request.prompt_length));
      results[0].token_id = request.tokens[0];
      for (size_t i = 0; i < group.count; ++i) {
        results[static_cast<size_t>(request.num_computed) + i + 1] = result(group.begin + i, group.num_top);
      }
    } else {
      for (int32_t i = 0; i <= group.entry->num_accepted; ++i) {
        const auto row = static_cast<size_t>(group.entry->path_row(i));
        group.entry->logprobs.push_back(result(group.begin + row, group.num_top));
      }
    }
  }
}

TokenLogprobs RowLogprobs::result(size_t row, int32_t num_top) const {
  const auto* floats = host_results_.as<float>();
  const auto* ids = host_results_.as<int32_t>();
  const size_t num_rows = rows_.size();
  TokenLogprobs result{.token_id = ids[row],
                       .logprob = floats[num_rows + row],
                       .rank = ids[2 * num_rows + row],
                       .top_ids = {},
                       .top_logprobs = {}};
  const size_t first = row * static_cast<size_t>(num_top_);
  for (size_t i = first; i < first + static_cast<size_t>(num_top) && ids[top_ids_at() + i] >= 0; ++i) {
    result.top_ids.push_back(ids[top_ids_at() + i]);
    result.top_logprobs.push_back(floats[top_logprobs_at() + i]);
  }
  return result;
}

}  // namespace eagle31rt
