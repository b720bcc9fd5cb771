// The batched step:
//
//   1 admit      waiting requests for which there are pages
//   2 schedule   one row for each decoding request, its drafts, and prompt chunks up to the row budget
//   3 propose    the drafter fills in the drafts
//   4 forward    the target runs all rows in one pass
//   5 process    penalties, masks and the like, for each row with the drafts before it
//   6 verify     every row is sampled; the walk decides what stands
//   7 commit     token by token, the first end wins
//   8 observe    the drafter's KV is rewritten from the true features of what stood
//   9 retire     pages and slots of finished requests go back
#include <algorithm>
#include <chrono>
#include <new>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

std::vector<ScheduledRequest> Engine::Impl::schedule_decode() {
  std::vector<ScheduledRequest> scheduled;
  for (const auto& request : running_) {
    if (!request->decoding()) continue;
    const int32_t drafts = request->is_drafting ? request->num_draft_tokens_wanted() : 0;
    scheduled.push_back({.request = request.get(), .num_rows = 1 + drafts, .num_drafts = drafts});
  }
  return scheduled;
}

// Prompts share a budget of rows of their own, in order of arrival: decode and draft rows do not take from it, so that
// many requests that speculate can not starve a new one.
void Engine::Impl::schedule_prefill(std::vector<ScheduledRequest>& scheduled) {
  int32_t budget = config_.max_num_batched_tokens;
  for (const auto& request : running_) {
    if (request->decoding() || budget == 0) continue;
    const int32_t remaining = request->prompt_length - request->num_computed;
    const int32_t rows = std::min(remaining, budget);
    scheduled.push_back({.request = request.get(), .num_rows = rows, .needs_logits = rows == remaining});
    budget -= rows;
  }
}

void Engine::Impl::propose(std::vector<ScheduledRequest>& scheduled) {
  const ScopedTimer timer(context_.profiler, Work::kDraft);
  std::vector<DraftRequest> wanted;
  for (ScheduledRequest& entry : scheduled) {
    if (entry.num_drafts == 0) continue;
    const RequestState& request = *entry.request;
    entry.proposal = wanted.size();
    wanted.push_back({.slot = request.slot,
                      .pages = request.pages,
                      .num_tokens = entry.num_drafts,
                      .temperature = request.params.temperature,
                      .seed = request.params.seed,
                      .first_position = request.length()});
  }
  if (!wanted.empty()) drafter_->propose(wanted, proposals_, draft_context_);
}

void Engine::Impl::forward() {
  bool capture = false;
  for (const ScheduledRequest& entry : batch_.scheduled()) capture |= entry.request->slot >= 0;
  const int64_t num_logit_rows = static_cast<int64_t>(batch_.logit_rows().size());
  const Decoder::Output output{
      .logits = logits_.get(num_logit_rows * decoder_->config().vocab_size),
      .captured = capture ? captured_.get(batch_.forward().num_rows() * decoder_->captured_size()) : nullptr};
  decoder_->forward(batch_.forward().view(), {batch_.logit_rows().data(), num_logit_rows}, output, target_kv_,
                    context_);
}

void Engine::Impl::process_rows() {
  const int64_t vocab_size = decoder_->config().vocab_size;
  logprobs_.clear();
  for (ScheduledRequest& entry : batch_.scheduled()) {
    if (entry.needs_logits) logprobs_.add_output(entry, entry.first_logit_row);
    logprobs_.add_prompt(entry, entry.first_prompt_logit_row);
  }
  logprobs_.keep(logits_.data(), vocab_size, context_);
  processors_.clear();
  for (ScheduledRequest& entry : batch_.scheduled()) {
    if (!entry.needs_logits) continue;
    const size_t num_standing = processors_.add(*entry.request, batch_.drafts(entry), entry.first_logit_row,
                                                logits_.data(), vocab_size, entry.error);
    batch_.refuse_drafts(entry, num_standing);
  }
  processors_.apply(logits_.data(), vocab_size, context_);
}

void Engine::Impl::verify() {
  const ScopedTimer timer(context_.profiler, Work::kLogits);
  std::span<const int32_t> draft_to_target;
  if (draft_) draft_to_target = draft_->weights().draft_to_target;
  batch_.verify(logits_.data(), decoder_->config().vocab_size, method_, proposals_, draft_to_target,
                config_.synthetic_acceptance_rates, context_);
}

std::vector<StepOutput> Engine::Impl::commit(std::span<ScheduledRequest> scheduled, const int32_t* emitted) {
  std::vector<StepOutput> outputs;
  for (ScheduledRequest& entry : scheduled) {
    RequestState& request = *entry.request;
    if (!entry.needs_logits) {
      request.num_computed += entry.num_rows;
      continue;
    }
    StepOutput& output = outputs.emplace_back();
    if (entry.num_accepted < 0 && entry.error.empty()) entry.error = no_finite_logit(request);
    if (!entry.error.empty()) {
      commit_error(request, entry.error, output);
      continue;
    }
    if (request.wants_prompt_logprobs()) output.prompt_logprobs = std::move(request.prompt_logprobs);
    if (drafter_ && entry.num_drafts > 0) drafter_->accept(request.slot, entry.num_accepted);
    request.num_computed += entry.num_rows - entry.num_drafts + entry.num_accepted;
    const std::span<const int32_t> run{emitted + entry.first_logit_row, static_cast<size_t>(entry.num_accepted) + 1};
    commit_run(request, run, entry.num_drafts, output);
    if (request.params.num_logprobs < 0) continue;
    entry.logprobs.resize(output.new_token_ids.size());  // tokens that a stop cut off have none
    output.logprobs = std::move(entry.logprobs);
  }
  return outputs;
}

void Engine::Impl::observe(const std::vector<int32_t>& computed_before) {
  const ScopedTimer timer(context_.profiler, Work::kDraft);
  std::vector<Observation> observations;
  for (size_t i = 0; i < batch_.scheduled().size(); ++i) {
    const RequestState& request = *batch_.scheduled()[i].request;
    if (request.slot < 0 || request.finished()) continue;
    const int32_t first = computed_before[i];
    const int64_t first_row = batch_.forward().row_begin[i];
    observations.push_back({.slot = request.slot,
                            .pages = request.pages,
                            .first_position = first,
                            .captured = captured_.data() + first_row * decoder_->captured_size(),
                            .next_tokens = {&request.tokens[static_cast<size_t>(first + 1)],
                                            static_cast<size_t>(request.num_computed - first)}});
  }
  if (observations.empty()) return;
  try {
    drafter_->observe(observations, draft_context_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResource) throw;
    stop_drafting();
  } catch (const std::bad_alloc&) {
    stop_drafting();
  }
}

// The tokens of this step are committed, so they must come out. Without memory to follow them the requests of the batch
// go on as plain decoding does, with the same ids.
void Engine::Impl::stop_drafting() {
  for (const ScheduledRequest& entry : batch_.scheduled()) release_slot(*entry.request);
}

std::vector<StepOutput> Engine::Impl::step() {
  if (runner_) return step_on_device();
  const auto start = std::chrono::steady_clock::now();
  admit(/*with_drafter=*/true);
  if (running_.empty()) return {};
  std::vector<ScheduledRequest> scheduled = schedule_decode();
  schedule_prefill(scheduled);
  propose(scheduled);
  batch_.build(std::move(scheduled), proposals_, config_.page_size);
  std::vector<int32_t> computed_before;
  for (const ScheduledRequest& entry : batch_.scheduled()) computed_before.push_back(entry.request->num_computed);
  forward();
  process_rows();
  verify();
  logprobs_.choose(batch_.emitted(), context_);
  logprobs_.take();
  std::vector<StepOutput> outputs = commit(batch_.scheduled(), batch_.emitted());
  observe(computed_before);
  retire_finished();
  profile_.num_steps += 1;
  profile_.step += (std::chrono::steady_clock::now() - start).count();
  return outputs;
}

}  // namespace eagle31rt
