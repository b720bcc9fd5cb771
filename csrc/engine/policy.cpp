// What the speculation controller is asked before a step, and told after it.
#include <algorithm>

#include "engine/engine_impl.h"

namespace eagle31rt {

// Sets max_drafts_now of the decoding requests. Where the step drafts nothing they do no draft work at all, else those
// without drafts follow the target: to catch up with single tokens would take a pass of its own.
void Engine::Impl::choose_drafts() {
  if (!controller_) return;
  reason_ = ChoiceReason::kNoDraft;
  policy_requests_.clear();
  for (const auto& request : scheduler_->running()) {
    request->max_drafts_now = INT32_MAX;
    if (!request->decoding()) continue;
    const int32_t most = request->can_draft() ? std::max(request->num_draft_tokens_wanted(), 0) : 0;
    policy_requests_.push_back({.id = request->id, .max_drafts = most, .context = request->length()});
  }
  if (policy_requests_.empty()) return;
  const SpeculationChoice& choice = controller_->choose(policy_requests_);
  reason_ = choice.reason;
  size_t next = 0;
  for (const auto& request : scheduler_->running()) {
    if (!request->decoding()) continue;
    const int32_t num_drafts = choice.num_drafts[next++];
    const int32_t without = choice.num_draft_steps > 0 ? -1 : 0;
    request->max_drafts_now = num_drafts > 0 ? num_drafts : without;
  }
}

// Before the step is committed: of the requests that decoded in it.
void Engine::Impl::collect_outcomes(std::span<const ScheduledRequest> decoded) {
  outcomes_.clear();
  for (const ScheduledRequest& entry : decoded) {
    if (!entry.needs_logits || entry.request->num_output_tokens() == 0) continue;
    outcomes_.push_back({.id = entry.request->id, .num_drafts = entry.num_drafts, .num_accepted = entry.num_accepted});
  }
}

void Engine::Impl::learn_from_step(std::span<const StepOutput> outputs, double seconds) {
  count_step(seconds);
  if (!controller_) return;
  StepCosts costs{.draft_seconds = times_.propose,
                  .observe_seconds = times_.observe,
                  .catch_up_seconds = times_.catch_up,
                  .target_seconds = seconds - times_.propose - times_.observe - times_.catch_up,
                  .has_prompts = times_.has_prompts};
  if (runner_) costs.draft_seconds = -1;  // not known apart
  if (!outcomes_.empty()) controller_->observe(outcomes_, costs);
  for (const StepOutput& output : outputs) {
    if (output.finish_reason != FinishReason::kNone) controller_->forget(output.request_id);
  }
}

void Engine::Impl::count_step(double seconds) {
  const auto nanoseconds = [](double value) { return static_cast<int64_t>(value * 1e9); };
  if (runner_) times_.verify = seconds;
  const double draft = times_.catch_up + times_.propose + times_.observe;
  totals_.draft_nanoseconds += nanoseconds(draft);
  totals_.verify_nanoseconds += nanoseconds(times_.verify);
  totals_.sample_nanoseconds += nanoseconds(times_.sample);
  totals_.host_nanoseconds += nanoseconds(std::max(seconds - draft - times_.verify - times_.sample, 0.0));
  if (outcomes_.empty()) return;
  int64_t EngineStats::* const kCounters[] = {&EngineStats::num_fixed_steps, &EngineStats::num_no_draft_steps,
                                              &EngineStats::num_plain_steps, &EngineStats::num_best_steps,
                                              &EngineStats::num_probe_steps, &EngineStats::num_back_off_steps};
  totals_.*kCounters[static_cast<size_t>(reason_)] += 1;
}

}  // namespace eagle31rt
