// What a step teaches the controller.
#include <algorithm>
#include <array>
#include <cmath>

#include "spec/controller.h"

namespace eagle31rt {

namespace {

constexpr double kProbeShare = 0.01;                           // of the time may be lost by probes
constexpr double kFirstCreditSteps = 3, kMostCreditSteps = 8;  // plain steps
// The common clock follows a step by this share of its surprise, which counts up to kLargestSurprise (logarithms).
constexpr double kSlownessGain = 0.06, kLargestSurprise = 0.25;
constexpr int32_t kTrustedSamples = 10;
constexpr double kAssumedDraftShare = 0.06;  // of a verify pass, where a device gives the time of both together
// Accepted drafts of the last steps against those expected: their variance is above their mean.
constexpr double kRecent = 0.9, kShiftDeviations = 2.5, kLeastShift = 0.3;
// Against plain decoding.
constexpr int32_t kWindowSteps = 32;
constexpr double kLost = 0.97, kWon = 1.03;                   // plain seconds for the same tokens, by seconds
constexpr double kLongestStep = 1.25;                         // expected steps that an outlier counts as
constexpr int32_t kFirstBackOff = 64, kLongestBackOff = 512;  // steps
constexpr double kLowestBias = 0.6, kHighestBias = 1.2, kBiasKept = 0.99;  // kept a plain step
constexpr double kUncertainPlain = 0.25;

}  // namespace

void SpeculationController::observe(std::span<const RoundOutcome> outcomes, const StepCosts& costs) {
  int64_t num_accepted = 0, num_drafts = 0;
  std::array<int64_t, kMaxDraftPositions> drafting{};  // requests that draft, by draft step
  size_t num_steps = 0;
  for (const RoundOutcome& outcome : outcomes) {
    num_accepted += std::max(outcome.num_accepted, 0);
    num_drafts += outcome.num_drafts;
    for (int32_t i = 0; i < outcome.num_drafts; ++i) drafting[static_cast<size_t>(i)] += 1;
    num_steps = std::max(num_steps, static_cast<size_t>(std::max(outcome.num_drafts, 0)));
  }
  // The caller may have run fewer drafts than were chosen; then what was expected says nothing.
  was_run_as_chosen_ = num_drafts == choice_.num_draft_rows && num_drafts > 0;
  if (was_run_as_chosen_) {
    notice_shift(static_cast<double>(num_accepted), choice_.expected_tokens - static_cast<double>(outcomes.size()));
  }
  learn_acceptance(outcomes);
  if (costs.has_prompts || outcomes.empty()) return;
  num_requests_ = std::ssize(outcomes);
  const double seconds = std::max(costs.draft_seconds, 0.0) + costs.observe_seconds + costs.target_seconds;
  const std::span<const int64_t> num_drafting(drafting.data(), num_steps);
  if (num_steps == 0) {
    learn_plain_cost(seconds);
    last_plain_ = now_;
    num_plain_steps_ += 1;
    accepted_bias_ = 1 + kBiasKept * (accepted_bias_ - 1);
  } else {
    watch(num_accepted, seconds);
    learn_costs(num_drafting, costs);
    last_speculation_ = now_;
  }
  pay_probes(static_cast<double>(std::ssize(outcomes) + num_accepted), seconds + costs.catch_up_seconds);
}

void SpeculationController::forget_acceptance() {
  trials_.clear();
  acceptance_ = {};
  accepted_bias_ = 1;
  recent_accepted_ = recent_expected_ = 0;
  window_ = {};
  back_off_left_ = next_back_off_ = 0;
}

void SpeculationController::learn_acceptance(std::span<const RoundOutcome> outcomes) {
  DraftTrials step;
  for (const RoundOutcome& outcome : outcomes) {
    if (outcome.num_accepted < 0) continue;  // a row had no finite logit
    if (outcome.num_drafts > 0) {
      step.add(outcome.num_drafts, outcome.num_accepted, /*keep=*/1);
      add_round(trials_[outcome.id], outcome.num_drafts, outcome.num_accepted);
    } else if (const auto found = trials_.find(outcome.id); found != trials_.end()) {
      add_idle_step(found->second);
    }
  }
  acceptance_.add_step(step);
}

// Averages react in dozens of steps. Where the last ten or so are far from what was expected, the traffic has changed.
void SpeculationController::notice_shift(double accepted, double expected) {
  if (num_requests_ > 2 * recent_requests_ || 2 * num_requests_ < recent_requests_) {
    recent_requests_ = num_requests_;
    recent_accepted_ = recent_expected_ = 0;
  }
  recent_accepted_ = kRecent * recent_accepted_ + accepted;
  recent_expected_ = kRecent * recent_expected_ + expected;
  const double surprise = std::abs(recent_accepted_ - recent_expected_);
  if (surprise < kShiftDeviations * std::sqrt(1.5 * recent_expected_) || surprise < kLeastShift * recent_expected_)
    return;
  acceptance_.doubt();
  for (auto& [id, trials] : trials_) trials.doubt();
  accepted_bias_ = 1;
  recent_accepted_ = recent_expected_ = 0;
  window_ = {};
}

void SpeculationController::learn_slowness(double seconds, double expected) {
  if (!(seconds > 0 && expected > 0)) return;
  log_slowness_ += kSlownessGain * std::clamp(std::log(seconds / expected), -kLargestSurprise, kLargestSurprise);
}

void SpeculationController::learn_plain_cost(double seconds) {
  if (plain_.num_samples(num_requests_, context_) >= kTrustedSamples) learn_slowness(seconds, plain_seconds());
  plain_.add(num_requests_, context_, seconds / std::exp(log_slowness_), now_, plain_curve_);
}

void SpeculationController::learn_costs(std::span<const int64_t> num_drafting, StepCosts costs) {
  int64_t num_rows = num_requests_;
  double draft = 0;
  for (int64_t count : num_drafting) {
    num_rows += count;
    draft += draft_curve_.seconds(count);
  }
  most_rows_ = std::max(most_rows_, num_rows);
  const double verify = verify_curve_.seconds(num_rows), observe = observe_curve_.seconds(num_drafting[0]);
  if (costs.draft_seconds < 0) {
    const double assumed = kAssumedDraftShare * static_cast<double>(num_drafting.size()) * verify;
    const double share = draft > 0 ? draft / (draft + verify) : assumed / (assumed + verify);
    costs.draft_seconds = verify > 0 ? share * costs.target_seconds : 0;
    costs.target_seconds -= costs.draft_seconds;
  }
  if (verify_.num_samples(num_rows, context_) >= kTrustedSamples) {
    learn_slowness(costs.draft_seconds + costs.observe_seconds + costs.target_seconds,
                   (verify + draft + observe) * std::exp(log_slowness_));
  }
  const double slowness = std::exp(log_slowness_);
  verify_.add(num_rows, context_, costs.target_seconds / slowness, now_, verify_curve_);
  observe_.add(num_drafting[0], context_, costs.observe_seconds / slowness, now_, observe_curve_);
  learn_draft_cost(num_drafting, costs.draft_seconds / slowness);
}

// The passes of a step are timed together: each differs from what was expected by the same factor.
void SpeculationController::learn_draft_cost(std::span<const int64_t> num_drafting, double seconds) {
  double expected = 0;
  for (int64_t count : num_drafting) expected += draft_curve_.seconds(count);
  const auto share = [&](int64_t count) {
    return draft_curve_.empty() ? seconds / static_cast<double>(num_drafting.size())
                                : seconds * draft_curve_.seconds(count) / expected;
  };
  const int64_t first = num_drafting.front(), last = num_drafting.back();
  draft_.add(first, context_, share(first), now_, draft_curve_);
  if (CostTable::nearest_knot(first) != CostTable::nearest_knot(last)) {
    draft_.add(last, context_, share(last), now_, draft_curve_);
  }
}

// A probe loses the time in which the best would have yielded more tokens.
double SpeculationController::probe_loss(double seconds, double tokens, double best_rate, double best_seconds) {
  return std::max(kLeastLoss * best_seconds, seconds - tokens / best_rate);
}

void SpeculationController::pay_probes(double tokens, double seconds) {
  const double plain = plain_seconds() > 0 ? plain_seconds() : seconds;
  if (!has_credit_) probe_credit_ = kFirstCreditSteps * plain;
  has_credit_ = true;
  probe_credit_ += kProbeShare * seconds;
  if (choice_.reason == ChoiceReason::kProbe && choice_.num_draft_steps > 0) {
    probe_credit_ -= probe_loss(seconds, tokens, best_rate_, plain);
  }
  probe_credit_ = std::clamp(probe_credit_, -kMostCreditSteps * plain, kMostCreditSteps * plain);
}

// Holds what speculation yielded against what plain steps would have, whatever the model of costs says.
void SpeculationController::watch(int64_t num_accepted, double seconds) {
  const auto requests = static_cast<double>(num_requests_);
  if (!was_run_as_chosen_ || choice_.reason != ChoiceReason::kBest ||
      plain_curve_.deviation(num_requests_) > kUncertainPlain)
    return;
  const double tokens = requests + static_cast<double>(num_accepted);
  window_.num_steps += 1;
  window_.seconds += std::min(seconds, kLongestStep * choice_.expected_seconds);
  window_.plain_seconds += tokens / requests * choice_.plain_seconds;
  window_.accepted += static_cast<double>(num_accepted);
  window_.expected_accepted += choice_.expected_tokens - requests;
  if (window_.num_steps < kWindowSteps) return;
  if (window_.expected_accepted > 0) {
    const double ratio = std::sqrt(std::max(window_.accepted / window_.expected_accepted, 0.25));
    accepted_bias_ = std::clamp(accepted_bias_ * ratio, kLowestBias, kHighestBias);
  }
  const double gain = window_.plain_seconds / window_.seconds;
  if (gain < kLost) {
    next_back_off_ = std::clamp(2 * next_back_off_, kFirstBackOff, kLongestBackOff);
    back_off_left_ = next_back_off_;
  } else if (gain > kWon) {
    next_back_off_ = 0;
  }
  window_ = {};
}

}  // namespace eagle31rt
