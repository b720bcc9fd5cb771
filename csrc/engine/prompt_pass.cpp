#include "engine/prompt_pass.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// As in spec/chain_drafter.cpp: the pair (feature p, token p + 1) is the draft's entry p + 1.
constexpr int32_t kPositionOffset = -1;

DeviceBuffer make_ids(Device& device, int64_t count) { return {device, static_cast<size_t>(count) * sizeof(int32_t)}; }

}  // namespace

PromptPass::PromptPass(const DeviceModels& models, const DeviceStepConfig& config, DeviceState& state,
                       StepMemory& memory)
    : models_(models),
      config_(config),
      state_(state),
      memory_(memory),
      draft_context_{models.context.pool, models.context.ops, nullptr, models.context.device},
      upload_(models.device),
      processors_(models.device, config.method == VerifyMethod::kSynthetic),
      logprobs_(models.device),
      prompt_logits_(models.device),
      num_accepted_(make_ids(models.device, config.max_num_seqs)),
      emitted_(make_ids(models.device, config.max_num_seqs)),
      draft_token_ids_(make_ids(models.device, config.max_prompt_rows)) {}

void PromptPass::launch(std::span<ScheduledRequest> chunks, int32_t* results) {
  std::stable_partition(chunks.begin(), chunks.end(),
                        [](const ScheduledRequest& chunk) { return chunk.request->is_drafting; });
  build(chunks);
  upload();
  const auto num_logit_rows = static_cast<int64_t>(logit_rows_.size());
  models_.decoder.forward(
      upload_.at(rows_at_), {.indices = upload_.at(logit_rows_at_), .count = num_logit_rows},
      {.logits = logits(), .captured = draft_rows_.num_rows() > 0 ? memory_.captured.as<float>() : nullptr}, models_.kv,
      models_.context);
  process_rows(chunks);
  if (!sampling_.empty()) sample(results);
  logprobs_.choose(emitted_.as<int32_t>(), models_.context);
  if (draft_rows_.num_rows() > 0) observe();
}

float* PromptPass::logits() {
  const auto size = static_cast<int64_t>(logit_rows_.size()) * models_.decoder.config().vocab_size;
  const bool fits = static_cast<size_t>(size) * sizeof(float) <= memory_.logits.size();
  return fits ? memory_.logits.as<float>() : prompt_logits_.get(size);
}

void PromptPass::process_rows(std::span<ScheduledRequest> chunks) {
  const int64_t vocab_size = models_.decoder.config().vocab_size;
  logprobs_.clear();
  for (ScheduledRequest& chunk : chunks) {
    if (chunk.needs_logits) logprobs_.add_output(chunk, chunk.first_logit_row);
    logprobs_.add_prompt(chunk, chunk.first_prompt_logit_row);
  }
  logprobs_.keep(logits(), vocab_size, models_.context);
  processors_.clear();
  for (ScheduledRequest& chunk : chunks) {
    if (!chunk.needs_logits) continue;
    processors_.add(*chunk.request, no_drafts(), chunk.first_logit_row, logits(), vocab_size, chunk.error);
  }
  processors_.apply(logits(), vocab_size, models_.context);
}

void PromptPass::build(std::span<ScheduledRequest> chunks) {
  size_t most_pages = 0;
  for (const ScheduledRequest& chunk : chunks) most_pages = std::max(most_pages, chunk.request->pages.size());
  rows_.clear(static_cast<int32_t>(most_pages));
  draft_rows_.clear(static_cast<int32_t>(most_pages) + 1);  // the last pair of a request may read behind its pages
  for (auto* list : {&logit_rows_, &finishing_slots_, &masked_ids_, &sampled_slots_}) list->clear();
  sampling_.clear();
  masked_begin_.assign(1, 0);
  last_rows_.assign(static_cast<size_t>(state_.num_slots()), -1);
  for (ScheduledRequest& chunk : chunks) add_chunk(chunk);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int32_t count = num_prompt_logprob_rows(chunks[i]);
    chunks[i].first_prompt_logit_row = static_cast<int32_t>(logit_rows_.size());
    for (int32_t row = 0; row < count; ++row) logit_rows_.push_back(rows_.row_begin[i] + row);
  }
  one_row_each_.resize(sampling_.size() + 1);
  std::iota(one_row_each_.begin(), one_row_each_.end(), 0);
}

void PromptPass::add_chunk(ScheduledRequest& chunk) {
  const RequestState& request = *chunk.request;
  E31_INVARIANT(request.slot >= 0 && chunk.num_drafts == 0);
  const auto tokens =
      std::span(request.tokens).subspan(static_cast<size_t>(request.num_computed), static_cast<size_t>(chunk.num_rows));
  rows_.add_request(tokens, request.pages, config_.page_size, request.num_computed, /*first_visible_entry=*/0,
                    /*position_offset=*/0, {.begin = request.first_owned_entry});
  if (chunk.needs_logits) add_sampled_row(chunk);
  if (request.is_drafting) add_observation(chunk);
}

void PromptPass::add_sampled_row(ScheduledRequest& chunk) {
  const RequestState& request = *chunk.request;
  chunk.first_logit_row = static_cast<int32_t>(logit_rows_.size());
  logit_rows_.push_back(static_cast<int32_t>(rows_.num_rows()) - 1);
  finishing_slots_.push_back(request.slot);
  sampling_.push_back(sampling_row(request, request.length()));
  append_masked_ids(request, /*path=*/{}, masked_ids_);
  masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
}

void PromptPass::add_observation(const ScheduledRequest& chunk) {
  const RequestState& request = *chunk.request;
  const auto begin = request.tokens.begin() + request.num_computed + 1;
  std::vector<int32_t> next_tokens(begin, begin + chunk.num_rows - (chunk.needs_logits ? 1 : 0));
  sampled_slots_.resize(sampled_slots_.size() + next_tokens.size(), -1);
  if (chunk.needs_logits) {
    next_tokens.push_back(0);
    sampled_slots_.push_back(request.slot);
  }
  // The pair of a token that ends its request may have no page; nobody will read it.
  const int32_t num_entries = static_cast<int32_t>(request.pages.size()) * config_.page_size;
  draft_rows_.add_request(next_tokens, request.pages, config_.page_size, request.num_computed + 1,
                          request.first_draft_entry, kPositionOffset, {.end = num_entries});
  last_rows_[static_cast<size_t>(request.slot)] = static_cast<int32_t>(draft_rows_.num_rows()) - 1;
}

void PromptPass::upload() {
  upload_.clear();
  rows_at_ = upload_.add(rows_);
  logit_rows_at_ = upload_.add(logit_rows_);
  finishing_slots_at_ = upload_.add(finishing_slots_);
  one_row_each_at_ = upload_.add(one_row_each_);
  sampling_at_ = upload_.add(sampling_);
  masked_begin_at_ = upload_.add(masked_begin_);
  masked_ids_at_ = upload_.add(masked_ids_);
  draft_rows_at_ = upload_.add(draft_rows_);
  sampled_slots_at_ = upload_.add(sampled_slots_);
  last_rows_at_ = upload_.add(last_rows_);
  upload_.send();
}

// Verification of no draft is the plain sampler; step_rows then takes the tokens over into the state.
void PromptPass::sample(int32_t* results) {
  const ScopedTimer timer(models_.context.profiler, Work::kLogits);
  const int64_t vocab = models_.decoder.config().vocab_size;
  const auto count = static_cast<int64_t>(sampling_.size());
  VerifyChainParams params{};
  params.method = VerifyMethod::kEquality;
  params.target = {.logits = logits(),
                   .rows = upload_.at(sampling_at_),
                   .masked_begin = masked_ids_.empty() ? nullptr : upload_.at(masked_begin_at_),
                   .masked_ids = masked_ids_.empty() ? nullptr : upload_.at(masked_ids_at_),
                   .token_ids = nullptr,
                   .num_rows = count,
                   .vocab_size = vocab,
                   .logits_stride = vocab};
  params.row_begin = upload_.at(one_row_each_at_);
  params.num_accepted = num_accepted_.as<int32_t>();
  params.emitted_token_ids = emitted_.as<int32_t>();
  params.num_requests = count;
  models_.context.ops.verify_chain(params, models_.context);

  StepRowsParams commit{};
  commit.mode = StepRowsMode::kCommit;
  commit.state = state_.view();
  commit.request_slots = upload_.at(finishing_slots_at_);
  commit.num_requests = count;
  commit.rows_per_request = 1;
  commit.num_accepted = num_accepted_.as<int32_t>();
  commit.emitted_token_ids = emitted_.as<int32_t>();
  commit.results = results;
  models_.context.ops.step_rows(commit, models_.context);
}

void PromptPass::observe() {
  const ScopedTimer timer(models_.context.profiler, Work::kDraft);
  EagleDraft& draft = *models_.draft;
  const int64_t hidden = draft.config().hidden_size, num_rows = draft_rows_.num_rows();
  const Ops& ops = draft_context_.ops;
  BatchView view = upload_.at(draft_rows_at_);
  // Tokens that the host knows, and over them those that were sampled just now. A request in which no id could be
  // chosen keeps an old one, which is as good as any: it ends here.
  models_.device.copy(draft_token_ids_.data(), view.token_ids, static_cast<size_t>(num_rows) * sizeof(int32_t));
  ops.gather_rows({.input = reinterpret_cast<const float*>(state_.view().last_token),
                   .indices = upload_.at(sampled_slots_at_),
                   .output = draft_token_ids_.as<float>(),
                   .num_rows = num_rows,
                   .num_columns = 1,
                   .input_stride = 1,
                   .output_stride = 1},
                  draft_context_);
  view.token_ids = draft_token_ids_.as<int32_t>();
  float* feature = memory_.feature.as<float>();
  draft.fuse(memory_.captured.as<float>(), num_rows, feature, draft_context_);
  draft.forward(view, feature, *models_.draft_kv, draft_context_);
  ops.gather_rows({.input = feature,
                   .indices = upload_.at(last_rows_at_),
                   .output = state_.last_states(),
                   .num_rows = state_.num_slots(),
                   .num_columns = hidden,
                   .input_stride = hidden,
                   .output_stride = hidden},
                  draft_context_);
}

}  // namespace eagle31rt
