#include "engine/row_processors.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/embedder_call.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

size_t num_words(int64_t vocab_size) { return static_cast<size_t>((vocab_size + 31) / 32); }

uint32_t bit_of(int32_t id) { return 1u << (id % 32); }
bool has_bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] & bit_of(id)) != 0;
}

// True if the output and the drafts of `path` end with `ids`.
bool ends_with(const RequestState& request, std::span<const int32_t> path, std::span<const int32_t> ids) {
  const auto output = std::span(request.tokens).subspan(static_cast<size_t>(request.prompt_length));
  if (ids.size() > output.size() + path.size()) return false;
  const size_t in_path = std::min(ids.size(), path.size()), in_output = ids.size() - in_path;
  return std::ranges::equal(ids.last(in_path), path.last(in_path)) &&
         std::ranges::equal(ids.first(in_output), output.last(in_output));
}

}  // namespace

bool processes_logits(const SamplingParams& params) {
  return has_penalties(params) || !params.logit_bias.empty() || !params.allowed_token_ids.empty() ||
         !params.bad_words.empty() || params.constraint != nullptr || !params.logits_processors.empty();
}

std::vector<uint32_t> make_mask(std::span<const int32_t> ids, int64_t vocab_size) {
  std::vector<uint32_t> mask(ids.empty() ? 0 : num_words(vocab_size), 0);
  for (int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= bit_of(id);
  return mask;
}

void append_masked_ids(const RequestState& request, std::span<const int32_t> path, std::vector<int32_t>& ids) {
  if (request.num_output_tokens() + static_cast<int32_t>(path.size()) < request.params.min_tokens) {
    ids.insert(ids.end(), request.delayed_token_ids.begin(), request.delayed_token_ids.end());
  }
  for (const std::vector<int32_t>& word : request.params.bad_words) {
    if (ends_with(request, path, std::span(word).first(word.size() - 1))) ids.push_back(word.back());
  }
}

// The rows of one request while they are added, depth first.
struct RowProcessors::Path {
  RequestState& request;
  const DraftTreeView& drafts;
  int64_t first_row;
  float* logits;
  int64_t vocab_size;
  ProcessRow row{};               // what all its rows share; path_begin, path_end and mask_begin are of the newest
  std::vector<int32_t> ids{};     // the drafts that lead to the newest row
  std::vector<int32_t> output{};  // of the request, then `ids`; for logits_processors only
  size_t num_advanced = 0;        // drafts that the constraint has accepted
};

RowProcessors::RowProcessors(Device& device, bool tells_refusals)
    : device_(device), tells_refusals_(tells_refusals), upload_(device) {}

void RowProcessors::clear() {
  rows_.clear();
  row_indices_.clear();
  path_ids_.clear();
  history_.clear();
  biases_.clear();
  masks_.clear();
}

std::span<const int32_t> RowProcessors::add(RequestState& request, const DraftTreeView& drafts, int64_t first_row,
                                            float* logits, int64_t vocab_size, std::string& error) {
  refused_.clear();
  if (!processes_logits(request.params)) return refused_;
  Path path{request, drafts, first_row, logits, vocab_size};
  add_shared(path);
  add_rows(path, error);
  return refused_;
}

void RowProcessors::add_shared(Path& path) {
  const RequestState& request = path.request;
  const SamplingParams& params = request.params;
  ProcessRow& row = path.row;
  row.repetition_penalty = params.repetition_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.presence_penalty = params.presence_penalty;
  row.history_begin = static_cast<int32_t>(history_.size());
  row.path_begin = row.path_end = static_cast<int32_t>(path_ids_.size());
  row.bias_begin = static_cast<int32_t>(biases_.size());
  if (has_penalties(params)) {
    const auto counts = path.request.history.update(request.tokens, request.prompt_length);
    history_.insert(history_.end(), counts.begin(), counts.end());
  }
  biases_.insert(biases_.end(), params.logit_bias.begin(), params.logit_bias.end());
  row.history_end = static_cast<int32_t>(history_.size());
  row.bias_end = static_cast<int32_t>(biases_.size());
  if (params.logits_processors.empty()) return;
  path.output.assign(request.tokens.begin() + request.prompt_length, request.tokens.end());
}

// Rows behind a draft that is refused, or that ends the request, do not matter. A failure behind drafts is left to the
// step in which these are committed: the walk stops before it, and it is met again without any. What was not looked at
// after a failure must not stand either.
void RowProcessors::add_rows(Path& path, std::string& error) {
  const DraftTreeView& drafts = path.drafts;
  mask_begin_.assign(static_cast<size_t>(drafts.num_rows()), -1);
  int32_t row = 0;
  try {
    add_row(path, 0);
    for (row = drafts.child_of(0); row > 0;) {
      const bool descends = step(path, row) == After::kGoOn;
      int32_t next = descends ? drafts.child_of(row) : -1;
      for (; next < 0 && row > 0; row = drafts.parents[row]) next = drafts.sibling_of(row);
      row = next;
    }
  } catch (const Error& failure) {
    if (row == 0) error = failure.what();
    refuse_from(path, row);
  }
  try {
    roll_back(path, 0);
  } catch (const Error& failure) {
    error = failure.what();
  }
}

// A failed row, and all that come after it depth first.
void RowProcessors::refuse_from(const Path& path, int32_t row) {
  const DraftTreeView& drafts = path.drafts;
  if (row > 0) refused_.push_back(row);
  for (; row > 0; row = drafts.parents[row]) {
    for (int32_t next = drafts.sibling_of(row); next > 0; next = drafts.sibling_of(next)) refused_.push_back(next);
  }
}

// Goes to a row, whose parent was added.
RowProcessors::After RowProcessors::step(Path& path, int32_t row) {
  const auto depth = static_cast<size_t>(path.drafts.depths[row]);
  roll_back(path, depth - 1);
  const int32_t draft = path.drafts.token_ids[static_cast<size_t>(row)];
  path.ids.resize(depth - 1);
  path.ids.push_back(draft);
  const After after = advance(path, mask_begin_[static_cast<size_t>(path.drafts.parents[row])], draft);
  if (after == After::kRefused && tells_refusals_) refused_.push_back(row);
  if (after == After::kGoOn) add_row(path, row);
  return after;
}

// Looks at a draft with its parent's mask, and moves the constraint behind it.
RowProcessors::After RowProcessors::advance(Path& path, int32_t mask_begin, int32_t draft) const {
  if (mask_begin < 0) return After::kGoOn;
  if (!has_bit(std::span(masks_).subspan(static_cast<size_t>(mask_begin)), draft)) return After::kRefused;
  TokenConstraint* constraint = path.request.params.constraint.get();
  if (constraint == nullptr) return After::kGoOn;
  if (path.request.is_end_token(draft)) return After::kEnded;
  return call_embedder("constraint", [&] {
    E31_CHECK(constraint->accept(draft), kInvalidArgument, "it refuses token ", draft, ", which its mask allows");
    path.num_advanced += 1;
    return constraint->is_finished() ? After::kEnded : After::kGoOn;
  });
}

// The constraint goes back to where it has accepted `depth` drafts, if it is further.
void RowProcessors::roll_back(Path& path, size_t depth) {
  if (path.num_advanced <= depth) return;
  call_embedder("constraint",
                [&] { path.request.params.constraint->roll_back(static_cast<int32_t>(path.num_advanced - depth)); });
  path.num_advanced = depth;
}

void RowProcessors::add_row(Path& path, int32_t row) {
  const SamplingParams& params = path.request.params;
  if (!params.logits_processors.empty()) run_custom(path, row);
  if (has_penalties(params)) add_path(path);
  path.row.mask_begin = mask_begin_[static_cast<size_t>(row)] = add_mask(path);
  if (!has_penalties(params) && params.logit_bias.empty() && path.row.mask_begin < 0) return;
  rows_.push_back(path.row);
  row_indices_.push_back(static_cast<int32_t>(path.first_row + row));
}

// A child of the newest row shares its path; depth first, only such a one is one deeper.
void RowProcessors::add_path(Path& path) {
  ProcessRow& row = path.row;
  const auto depth = static_cast<int32_t>(path.ids.size());
  if (depth > 0 && row.path_end - row.path_begin == depth - 1) {
    path_ids_.push_back(path.ids.back());
  } else {
    row.path_begin = static_cast<int32_t>(path_ids_.size());
    path_ids_.insert(path_ids_.end(), path.ids.begin(), path.ids.end());
  }
  row.path_end = row.path_begin + depth;
}

// -1 if the row has no mask.
int32_t RowProcessors::add_mask(const Path& path) {
  const RequestState& request = path.request;
  TokenConstraint* constraint = request.params.constraint.get();
  if (constraint == nullptr && request.allowed_mask.empty()) return -1;
  const size_t begin = masks_.size();
  masks_.resize(begin + num_words(path.vocab_size), 0);
  const std::span<uint32_t> mask = std::span(masks_).subspan(begin);
  if (constraint != nullptr) call_embedder("constraint", [&] { constraint->fill_mask(mask); });
  for (size_t i = 0; i < request.allowed_mask.size(); ++i) {
    mask[i] = constraint == nullptr ? request.allowed_mask[i] : mask[i] & request.allowed_mask[i];
  }
  // The sampler leaves these out by itself; here they tell whether any id is left.
  banned_.clear();
  append_masked_ids(request, path.ids, banned_);
  for (int32_t id : banned_) {
    if (id < path.vocab_size) mask[static_cast<size_t>(id) / 32] &= ~bit_of(id);
  }
  if (path.vocab_size % 32 != 0) mask.back() &= bit_of(static_cast<int32_t>(path.vocab_size)) - 1;
  E31_CHECK(std::ranges::any_of(mask, [](uint32_t word) { return word != 0; }), kInvalidArgument,
            "no token may follow position ", request.length() - 1,
            ": constraint, allowed_token_ids, bad_words and min_tokens together ban every id");
  return static_cast<int32_t>(begin);
}

void RowProcessors::run_custom(Path& path, int32_t row_of_request) {
  const RequestState& request = path.request;
  const auto vocab_size = static_cast<size_t>(path.vocab_size);
  const size_t num_bytes = vocab_size * sizeof(float);
  float* row = path.logits + (path.first_row + row_of_request) * path.vocab_size;
  std::span<float> logits{row, vocab_size};
  if (!device_.is_host()) {
    host_row_.resize(vocab_size);
    logits = host_row_;
    device_.copy_to_host(logits.data(), row, num_bytes);
    device_.synchronize();
  }
  const auto prompt = std::span<const int32_t>(request.tokens).first(static_cast<size_t>(request.prompt_length));
  path.output.resize(static_cast<size_t>(request.num_output_tokens()));
  path.output.insert(path.output.end(), path.ids.begin(), path.ids.end());
  const auto& processors = request.params.logits_processors;
  for (size_t i = 0; i < processors.size(); ++i) {
    call_embedder(concat("logits_processors[", i, "]"), [&] { processors[i]->apply(prompt, path.output, logits); });
  }
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  E31_CHECK(std::ranges::any_of(logits, [](float logit) { return logit > kLowest; }), kInvalidArgument,
            "logits_processors leave no id after position ", request.length() - 1);
  if (!device_.is_host()) device_.copy_to_device(row, logits.data(), num_bytes);
}

void RowProcessors::apply(float* logits, int64_t vocab_size, ExecutionContext& context) {
  if (rows_.empty()) return;
  upload_.clear();
  const auto rows_at = upload_.add(rows_);
  const auto row_indices_at = upload_.add(row_indices_);
  const auto history_at = upload_.add(history_);
  const auto path_ids_at = upload_.add(path_ids_);
  const auto biases_at = upload_.add(biases_);
  const auto masks_at = upload_.add(masks_);
  upload_.send();
  context.ops.process_logits({.logits = logits,
                              .rows = upload_.at(rows_at),
                              .history = upload_.at(history_at),
                              .path_ids = upload_.at(path_ids_at),
                              .biases = upload_.at(biases_at),
                              .masks = upload_.at(masks_at),
                              .row_indices = upload_.at(row_indices_at),
                              .num_rows = static_cast<int64_t>(rows_.size()),
                              .vocab_size = vocab_size,
                              .logits_stride = vocab_size},
                             context);
}

}  // namespace eagle31rt
