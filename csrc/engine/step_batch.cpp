#include "engine/step_batch.h"

#include <algorithm>
#include <cstring>

#include "device/execution_context.h"
#include "engine/row_logprobs.h"
#include "engine/row_processors.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

int group_of(const ScheduledRequest& scheduled) { return !scheduled.needs_logits ? 2 : scheduled.num_drafts > 0; }

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
  forward_.clear(static_cast<int32_t>(most_pages));
  logit_rows_.clear();
  sampling_.clear();
  masked_begin_.assign(1, 0);
  masked_ids_.clear();
  draft_ids_.clear();
  for (ScheduledRequest& entry : scheduled_) add_rows(entry, proposals, page_size);
  for (size_t i = 0; i < scheduled_.size(); ++i) add_prompt_logit_rows(scheduled_[i], forward_.row_begin[i]);
}

void StepBatch::add_rows(ScheduledRequest& scheduled, const Proposals& proposals, int32_t page_size) {
  const RequestState& request = *scheduled.request;
  const int32_t first = request.num_computed;
  const int32_t num_known = scheduled.num_rows - scheduled.num_drafts;
  const int32_t* drafts = nullptr;
  if (scheduled.num_drafts > 0) {
    drafts = &proposals.token_ids[scheduled.proposal * static_cast<size_t>(proposals.max_tokens)];
  }
  std::vector<int32_t> fed(request.tokens.begin() + first, request.tokens.begin() + first + num_known);
  fed.insert(fed.end(), drafts, drafts + scheduled.num_drafts);
  const int32_t first_row = static_cast<int32_t>(forward_.num_rows());
  forward_.add_request(fed, request.pages, page_size, first, /*first_visible_entry=*/0, /*position_offset=*/0,
                       {.begin = request.first_owned_entry});
  if (!scheduled.needs_logits) return;

  scheduled.first_logit_row = static_cast<int32_t>(logit_rows_.size());
  const auto path = std::span<const int32_t>(fed).last(static_cast<size_t>(scheduled.num_drafts));
  for (int32_t depth = 0; depth <= scheduled.num_drafts; ++depth) {
    logit_rows_.push_back(first_row + num_known - 1 + depth);
    sampling_.push_back(sampling_row(request, request.length() + depth));
    append_masked_ids(request, path.first(static_cast<size_t>(depth)), masked_ids_);
    masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    draft_ids_.push_back(depth == 0 ? -1 : path[static_cast<size_t>(depth) - 1]);
  }
}

void StepBatch::add_prompt_logit_rows(ScheduledRequest& scheduled, int64_t first_row) {
  const int32_t count = num_prompt_logprob_rows(scheduled);
  scheduled.first_prompt_logit_row = static_cast<int32_t>(logit_rows_.size());
  for (int32_t row = 0; row < count; ++row) logit_rows_.push_back(static_cast<int32_t>(first_row) + row);
}

std::span<const int32_t> StepBatch::drafts(const ScheduledRequest& entry) const {
  return std::span(draft_ids_)
      .subspan(static_cast<size_t>(entry.first_logit_row) + 1, static_cast<size_t>(entry.num_drafts));
}

void StepBatch::refuse_drafts(const ScheduledRequest& entry, size_t num_standing) {
  if (num_standing == static_cast<size_t>(entry.num_drafts)) return;
  draft_ids_[static_cast<size_t>(entry.first_logit_row) + 1 + num_standing] = -1;
}

void StepBatch::gather_draft_laws(const Proposals& proposals) {
  const size_t vocab = static_cast<size_t>(proposals.draft_vocab_size);
  draft_laws_.resize(sampling_.size() * vocab);
  for (const ScheduledRequest& entry : scheduled_) {
    if (entry.num_drafts == 0) continue;
    std::memcpy(&draft_laws_[static_cast<size_t>(entry.first_logit_row) * vocab],
                proposals.logits + entry.proposal * static_cast<size_t>(proposals.max_tokens) * vocab,
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
  size_t first_drafted = 0, end = 0;
  for (const ScheduledRequest& entry : scheduled_) {
    first_drafted += group_of(entry) == 0;
    end += group_of(entry) < 2;
  }
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
  verify_group(0, first_drafted, params, context);
  if (first_drafted == end) return;

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
  verify_group(first_drafted, end, params, context);
}

void StepBatch::verify_group(size_t first, size_t last, VerifyChainParams params, ExecutionContext& context) {
  if (first == last) return;
  const int32_t base = scheduled_[first].first_logit_row;
  std::vector<int32_t> row_begin{0}, num_accepted(last - first);
  for (size_t i = first; i < last; ++i) row_begin.push_back(row_begin.back() + scheduled_[i].num_drafts + 1);
  params.target.logits += base * params.target.logits_stride;
  params.target.rows += base;
  params.target.masked_begin += base;
  params.target.num_rows = row_begin.back();
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

}  // namespace eagle31rt
