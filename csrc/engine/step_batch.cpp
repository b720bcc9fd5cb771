#include "engine/step_batch.h"

#include <algorithm>
#include <cstring>

#include "device/execution_context.h"
#include "engine/row_logprobs.h"
#include "engine/row_processors.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

int group_of(const ScheduledRequest& scheduled) {
  return !scheduled.needs_logits ? 0 : scheduled.num_drafts == 0 ? 1 : 2;
}

// The rows of `params` from `first` on.
SampleParams rows_from(SampleParams params, int32_t first, int32_t num_rows) {
  params.logits += first * params.logits_stride;
  params.rows += first;
  params.masked_begin += first;
  params.num_rows = num_rows;
  return params;
}

// The drafts that lead to a row, its own one the last.
void path_to(const DraftTreeView& tree, int32_t row, std::vector<int32_t>& path) {
  path.resize(static_cast<size_t>(tree.depths[row]));
  for (size_t depth = path.size(); depth > 0; row = tree.parents[row]) {
    path[--depth] = tree.token_ids[static_cast<size_t>(row)];
  }
}

}  // namespace

SamplingRow sampling_row(const RequestState& request, int64_t position) {
  const SamplingParams& params = request.params;
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .seed = params.seed,
          .position = position};
}

std::vector<float> conditional_rates(std::span<const double> rates) {
  std::vector<float> conditional;
  for (size_t i = 0; i < rates.size(); ++i) {
    const double before = i == 0 ? 1.0 : rates[i - 1];
    conditional.push_back(before > 0 ? static_cast<float>(rates[i] / before) : 0.0f);
  }
  return conditional;
}

void StepBatch::build(std::vector<ScheduledRequest> scheduled, const Proposals& proposals, int32_t page_size) {
  scheduled_ = std::move(scheduled);
  std::stable_sort(scheduled_.begin(), scheduled_.end(),
                   [](const auto& a, const auto& b) { return group_of(a) < group_of(b); });
  size_t most_pages = 0;
  for (const ScheduledRequest& entry : scheduled_) most_pages = std::max(most_pages, entry.request->pages.size());
  forward_.clear(static_cast<int32_t>(most_pages), proposals.mask_words);
  for (auto* list : {&logit_rows_, &masked_ids_, &draft_ids_, &first_child_, &next_sibling_}) list->clear();
  sampling_.clear();
  masked_begin_.assign(1, 0);
  for (ScheduledRequest& entry : scheduled_) add_rows(entry, proposals, page_size);
  for (size_t i = 0; i < scheduled_.size(); ++i) add_prompt_logit_rows(scheduled_[i], forward_.row_begin[i]);
}

DraftTreeView StepBatch::drafts(const ScheduledRequest& entry, const Proposals& proposals) const {
  return entry.num_drafts > 0 ? proposals.tree(entry.proposal) : no_drafts();
}

void StepBatch::add_rows(ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size) {
  const RequestState& request = *scheduled.request;
  const int32_t first = request.num_computed;
  const int32_t first_row = static_cast<int32_t>(forward_.num_rows());
  if (scheduled.num_drafts > 0) {
    add_drafted_rows(scheduled, proposals, page_size);
  } else {
    const auto fed =
        std::span(request.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(scheduled.num_rows));
    forward_.add_request(fed, request.pages, page_size, first, /*first_visible_entry=*/0, /*position_offset=*/0,
                         {.begin = request.first_owned_entry});
  }
  if (!scheduled.needs_logits) return;

  scheduled.first_logit_row = static_cast<int32_t>(logit_rows_.size());
  const DraftTreeView tree = drafts(scheduled, proposals);
  std::vector<int32_t> path;
  for (int32_t row = 0; row < tree.num_rows(); ++row) {
    path_to(tree, row, path);
    logit_rows_.push_back(first_row + scheduled.num_rows - tree.num_rows() + row);
    sampling_.push_back(sampling_row(request, request.length() + tree.depths[row]));
    append_masked_ids(request, path, masked_ids_);
    masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    draft_ids_.push_back(row == 0 ? -1 : tree.token_ids[static_cast<size_t>(row)]);
    first_child_.push_back(tree.child_of(row));
    next_sibling_.push_back(tree.sibling_of(row));
  }
}

// The newest token and its drafts.
void StepBatch::add_drafted_rows(const ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size) {
  const RequestState& request = *scheduled.request;
  const DraftTreeView tree = drafts(scheduled, proposals);
  std::vector<int32_t> fed(tree.token_ids.begin(), tree.token_ids.end());
  fed.front() = request.tokens.back();
  if (tree.ancestor_mask == nullptr) {
    forward_.add_request(fed, request.pages, page_size, request.num_computed, /*first_visible_entry=*/0,
                         /*position_offset=*/0, {.begin = request.first_owned_entry});
    return;
  }
  forward_.add_tree({.token_ids = fed,
                     .depths = {tree.depths, fed.size()},
                     .ancestor_mask = tree.ancestor_mask,
                     .mask_words = tree.mask_words},
                    request.pages, page_size, request.num_computed, /*first_visible_entry=*/0, /*position_offset=*/0);
}

void StepBatch::add_prompt_logit_rows(ScheduledRequest& scheduled, int64_t first_row) {
  const int32_t count = num_prompt_logprob_rows(scheduled);
  scheduled.first_prompt_logit_row = static_cast<int32_t>(logit_rows_.size());
  for (int32_t row = 0; row < count; ++row) logit_rows_.push_back(static_cast<int32_t>(first_row) + row);
}

void StepBatch::refuse_draft(const ScheduledRequest& entry, int32_t row) {
  draft_ids_[static_cast<size_t>(entry.first_logit_row + row)] = -1;
}

void StepBatch::gather_draft_laws(const Proposals& proposals) {
  const size_t vocab = static_cast<size_t>(proposals.draft_vocab_size);
  draft_laws_.resize(sampling_.size() * vocab);
  for (const ScheduledRequest& entry : scheduled_) {
    if (entry.num_drafts == 0) continue;
    std::memcpy(&draft_laws_[static_cast<size_t>(entry.first_logit_row) * vocab],
                proposals.logits + static_cast<size_t>(proposals.first_row(entry.proposal)) * vocab,
                static_cast<size_t>(entry.num_drafts) * vocab * sizeof(float));
  }
}

void StepBatch::gather_rates(std::span<const double> rates) {
  const std::vector<float> conditional = conditional_rates(rates);
  rates_.assign(sampling_.size(), 0.0f);
  for (const ScheduledRequest& entry : scheduled_) {
    std::copy_n(conditional.begin(), entry.num_drafts, rates_.begin() + entry.first_logit_row);
  }
}

void StepBatch::verify(const float* logits, int64_t vocab_size, VerifyMethod method, const Proposals& proposals,
                       std::span<const int32_t> draft_to_target, std::span<const double> rates,
                       ExecutionContext& context) {
  emitted_.assign(sampling_.size(), -1);
  path_rows_.assign(sampling_.size(), -1);
  size_t first = 0, first_drafted = 0;
  for (const ScheduledRequest& entry : scheduled_) {
    first += group_of(entry) < 1;
    first_drafted += group_of(entry) < 2;
  }
  first_tree_ = proposals.mask_words > 0 ? first_drafted : scheduled_.size();
  VerifyChainParams params{};
  params.target = {.logits = logits,
                   .rows = sampling_.data(),
                   .masked_begin = masked_begin_.data(),
                   .masked_ids = masked_ids_.data(),
                   .token_ids = nullptr,
                   .num_rows = 0,
                   .vocab_size = vocab_size,
                   .logits_stride = vocab_size};
  // Without drafts every method is the plain sampler.
  params.method = VerifyMethod::kEquality;
  verify_chains(first, first_drafted, params, context);

  params.method = method;
  if (proposals.logits != nullptr) {
    gather_draft_laws(proposals);
    params.draft_logits = draft_laws_.data();
    params.draft_vocab_size = proposals.draft_vocab_size;
    params.draft_logits_stride = proposals.draft_vocab_size;
    params.draft_to_target = draft_to_target.empty() ? nullptr : draft_to_target.data();
  }
  if (method == VerifyMethod::kSynthetic) {
    gather_rates(rates);
    params.acceptance_rates = rates_.data();
  }
  verify_chains(first_drafted, first_tree_, params, context);
  verify_trees(first_tree_, params, context);
  collect_by_row();
}

// Logit rows of the entries from `first` on, counted from the first one's.
std::vector<int32_t> StepBatch::relative_row_begin(size_t first, size_t last) const {
  std::vector<int32_t> row_begin{0};
  for (size_t i = first; i < last; ++i) row_begin.push_back(row_begin.back() + scheduled_[i].num_drafts + 1);
  return row_begin;
}

void StepBatch::verify_chains(size_t first, size_t last, VerifyChainParams params, ExecutionContext& context) {
  if (first == last) return;
  const int32_t base = scheduled_[first].first_logit_row;
  const std::vector<int32_t> row_begin = relative_row_begin(first, last);
  std::vector<int32_t> num_accepted(last - first);
  params.target = rows_from(params.target, base, row_begin.back());
  if (params.draft_logits != nullptr) params.draft_logits += base * params.draft_logits_stride;
  if (params.acceptance_rates != nullptr) params.acceptance_rates += base;
  params.row_begin = row_begin.data();
  params.draft_token_ids = draft_ids_.data() + base;
  params.num_accepted = num_accepted.data();
  params.emitted_token_ids = emitted_.data() + base;
  params.num_requests = static_cast<int64_t>(last - first);
  context.ops.verify_chain(params, context);
  for (size_t i = first; i < last; ++i) scheduled_[i].num_accepted = num_accepted[i - first];
}

void StepBatch::verify_trees(size_t first, const VerifyChainParams& chains, ExecutionContext& context) {
  num_accepted_.assign(scheduled_.size() - first, 0);
  if (num_accepted_.empty()) return;
  const int32_t base = scheduled_[first].first_logit_row;
  VerifyTreeParams params{};
  params.method = tree_verify_method(chains.method);
  params.target = rows_from(chains.target, base, forward_.tree_row_begin.back());
  params.row_begin = forward_.tree_row_begin.data();
  params.token_ids = draft_ids_.data() + base;
  params.first_child = first_child_.data() + base;
  params.next_sibling = next_sibling_.data() + base;
  if (chains.draft_logits != nullptr) params.draft_logits = chains.draft_logits + base * chains.draft_logits_stride;
  params.draft_to_target = chains.draft_to_target;
  params.draft_vocab_size = chains.draft_vocab_size;
  params.draft_logits_stride = chains.draft_logits_stride;
  params.num_accepted = num_accepted_.data();
  params.path_rows = path_rows_.data() + base;
  params.emitted_token_ids = emitted_.data() + base;
  params.num_requests = static_cast<int64_t>(num_accepted_.size());
  context.ops.verify_tree(params, context);
  for (size_t i = first; i < scheduled_.size(); ++i) {
    ScheduledRequest& entry = scheduled_[i];
    entry.num_accepted = num_accepted_[i - first];
    entry.path_rows =
        std::span(path_rows_)
            .subspan(static_cast<size_t>(entry.first_logit_row), static_cast<size_t>(entry.num_drafts) + 1);
  }
}

void StepBatch::collect_by_row() {
  emitted_by_row_.assign(sampling_.size(), -1);
  for (const ScheduledRequest& entry : scheduled_) {
    for (int32_t i = 0; entry.needs_logits && i <= entry.num_accepted; ++i) {
      const int32_t row = entry.first_logit_row + entry.path_row(i);
      emitted_by_row_[static_cast<size_t>(row)] = emitted_[static_cast<size_t>(entry.first_logit_row + i)];
    }
  }
}

void StepBatch::compact(const KvStorage& kv, ExecutionContext& context) const {
  if (num_accepted_.empty()) return;
  const std::vector<KvCacheView>& layers = kv.entries();
  context.ops.compact_kv({.cache = layers.front(),
                          .layers = layers.data(),
                          .row_begin = forward_.tree_row_begin.data(),
                          .slots = &forward_.slots[static_cast<size_t>(forward_.row_begin[first_tree_])],
                          .num_accepted = num_accepted_.data(),
                          .path_rows = &path_rows_[static_cast<size_t>(scheduled_[first_tree_].first_logit_row)],
                          .num_requests = static_cast<int64_t>(num_accepted_.size()),
                          .num_layers = static_cast<int32_t>(layers.size())},
                         context);
}

}  // namespace eagle31rt
