// The batched step:
//
//   1 schedule   who runs, with how many rows and drafts (scheduler.h)
//   2 propose    the drafter fills in the drafts
//   3 forward    the target runs all rows in one pass
//   4 process    penalties, masks and the like, for each row with the drafts before it
//   5 verify     every row is sampled; the walk decides what stands
//   6 commit     token by token, the first end wins
//   7 observe    the drafter's KV is rewritten from the true features of what stood
//   8 finish     full pages are published; pages and slots of finished requests go back
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

namespace {

class LapTimer {
 public:
  // Since the last call, or since it was made.
  double seconds() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

void Engine::Impl::begin_drafting(const RequestState& request) {
  if (request.is_drafting) drafter_->begin(request.slot, request.num_observed, request.first_draft_entry);
}

void Engine::Impl::propose(std::vector<ScheduledRequest>& scheduled) {
  std::vector<DraftRequest>& wanted = draft_requests_;
  wanted.clear();
  for (ScheduledRequest& entry : scheduled) {
    if (entry.num_drafts == 0) continue;
    const RequestState& request = *entry.request;
    entry.proposal = wanted.size();
    wanted.push_back({.slot = request.slot,
                      .pages = request.pages,
                      .num_tokens = entry.num_drafts,
                      .max_depth = request.max_draft_depth(),
                      .temperature = request.params.temperature,
                      .seed = request.params.seed,
                      .first_position = request.length()});
  }
  if (wanted.empty()) return;
  const ScopedTimer timer(context_.profiler, Work::kDraft);
  drafter_->propose(wanted, proposals_, draft_context_);
  for (ScheduledRequest& entry : scheduled) {
    if (entry.num_drafts == 0) continue;
    entry.num_drafts = proposals_.num_drafts[entry.proposal];  // of a tree perhaps fewer than there might have been
    entry.num_rows = 1 + entry.num_drafts;
  }
}

void Engine::Impl::forward() {
  bool capture = false;
  for (const ScheduledRequest& entry : batch_.scheduled()) {
    capture |= entry.request->is_drafting || keeps_features(*entry.request);
  }
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
    for (const int32_t row : processors_.add(*entry.request, batch_.drafts(entry, proposals_), entry.first_logit_row,
                                             logits_.data(), vocab_size, entry.error)) {
      batch_.refuse_draft(entry, row);
    }
  }
  processors_.apply(logits_.data(), vocab_size, context_);
}

void Engine::Impl::verify() {
  const ScopedTimer timer(context_.profiler, Work::kLogits);
  std::span<const int32_t> draft_to_target;
  if (draft_) draft_to_target = draft_->weights().draft_to_target;
  batch_.verify(logits_.data(), decoder_->config().vocab_size, method_, proposals_, draft_to_target,
                config_.synthetic_acceptance_rates, context_);
  batch_.compact(target_kv_, context_);
}

// The captured states of an accepted path, from its rows to the first ones.
void Engine::Impl::compact_captured(const ScheduledRequest& entry, float* captured) const {
  const auto size = static_cast<size_t>(decoder_->captured_size());
  for (int32_t i = 1; i <= entry.num_accepted && !entry.path_rows.empty(); ++i) {
    // Paths ascend, so a row that is written is not read again.
    std::memmove(captured + static_cast<size_t>(i) * size, captured + static_cast<size_t>(entry.path_row(i)) * size,
                 size * sizeof(float));
  }
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
    output.num_cached_tokens = request.num_cached_tokens;
    output.first_run_at = request.first_run_at;
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

// Up to which position the drafter observes the request. One that has ended is observed only where that completes a
// page that it leaves to the prefix cache.
int32_t Engine::Impl::positions_to_observe(const RequestState& request) const {
  if (!request.finished()) return request.num_computed;
  if (!config_.enable_prefix_caching) return 0;
  return request.num_shareable_entries() / config_.page_size * config_.page_size - 1;
}

// The tokens of this step are committed, so they must come out, whatever happens here.
void Engine::Impl::observe() {
  try {
    for (size_t i = 0; i < batch_.scheduled().size(); ++i) {
      RequestState& request = *batch_.scheduled()[i].request;
      const int32_t first = computed_before_[i], num_new = request.num_computed - first;
      const int64_t first_row = batch_.forward().row_begin[i];
      float* captured = captured_.data() + first_row * decoder_->captured_size();
      compact_captured(batch_.scheduled()[i], captured);
      if (request.is_drafting && request.max_drafts_now != 0 && request.num_observed == first) {
        const int32_t end = positions_to_observe(request);
        if (end > first) add_observation(request, first, end, captured);
      } else if (num_new > 0 && keeps_features(request)) {
        features_->keep(request.pages, first, num_new, captured);
      }
    }
    run_observations();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResource) throw;
    stop_drafting(batch_.scheduled());
  } catch (const std::bad_alloc&) {
    stop_drafting(batch_.scheduled());
  }
}

void Engine::Impl::expire() {
  for (StepOutput& output : scheduler_->expire(std::chrono::steady_clock::now())) {
    expired_.push_back(std::move(output));
  }
}

std::vector<StepOutput> Engine::Impl::finish_step(std::vector<StepOutput> outputs,
                                                  std::chrono::steady_clock::time_point start) {
  scheduler_->finish_step();
  outputs.insert(outputs.end(), std::move_iterator(expired_.begin()), std::move_iterator(expired_.end()));
  expired_.clear();
  const auto elapsed = std::chrono::steady_clock::now() - start;
  profile_.num_steps += 1;
  profile_.step += elapsed.count();
  learn_from_step(outputs, std::chrono::duration<double>(elapsed).count());
  return outputs;
}

std::vector<StepOutput> Engine::Impl::step() {
  if (runner_) return step_on_device();
  const auto start = std::chrono::steady_clock::now();
  expire();
  choose_drafts();
  Schedule schedule = scheduler_->schedule();
  if (schedule.empty()) return std::exchange(expired_, {});
  for (const RequestState* request : schedule.entered) begin_drafting(*request);
  times_ = {.has_prompts = !schedule.prompts.empty()};
  LapTimer lap;
  catch_up(schedule);
  times_.catch_up = lap.seconds();
  std::vector<ScheduledRequest>& scheduled = schedule.decode;
  {
    const ScopedTimer timer(profiler_of_passes(), Work::kOther);
    propose(scheduled);
  }
  times_.propose = lap.seconds();
  scheduled.insert(scheduled.end(), schedule.prompts.begin(), schedule.prompts.end());
  batch_.build(std::move(scheduled), proposals_, config_.page_size);
  computed_before_.clear();
  for (const ScheduledRequest& entry : batch_.scheduled()) computed_before_.push_back(entry.request->num_computed);
  {
    const ScopedTimer timer(profiler_of_passes(), Work::kOther);
    lap.seconds();
    forward();
    times_.verify = lap.seconds();
    process_rows();
    verify();
    logprobs_.choose(batch_.emitted_by_row(), context_);
    logprobs_.take();
    times_.sample = lap.seconds();
  }
  collect_outcomes(batch_.scheduled());
  std::vector<StepOutput> outputs = commit(batch_.scheduled(), batch_.emitted());
  lap.seconds();
  {
    const ScopedTimer timer(profiler_of_passes(), Work::kOther);
    observe();
  }
  times_.observe = lap.seconds();
  return finish_step(std::move(outputs), start);
}

}  // namespace eagle31rt
