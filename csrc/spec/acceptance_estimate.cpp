#include "spec/acceptance_estimate.h"

#include <algorithm>
#include <cmath>

namespace eagle31rt {

namespace {

constexpr double kPriorRate = 0.7;  // of published heads, 0.6 to 0.85 at the first position
// Trials that the batch's rate is worth against a request's own, and the rate before a position against its own.
constexpr double kBatchTrials = 8, kPreviousTrials = 3;
// Half-lives: rounds of a request; trials of the batch, but kTriedSteps steps  in which the
// batch did not try the position.
constexpr double kRequestHalfLife = 30, kBatchHalfLife = 160, kUntriedHalfLife = 1000;
constexpr double kKeptInDoubt = 0.1;
constexpr double kFewestTriedSteps = 8, kMostTriedSteps = 40;
// Steps in which a request drafts nothing while others may: it comes back to the batch's rate.
constexpr double kIdleHalfLife = 200;

double keep(double half_life) { return std::exp2(-1 / half_life); }

}  // namespace

void DraftTrials::add(int32_t num_drafts, int32_t accepted, double keep) {
  const int32_t tried = std::min({accepted + 1, num_drafts, kMaxDraftPositions});
  for (int32_t position = 0; position < tried; ++position) {
    const auto i = static_cast<size_t>(position);
    num_trials[i] = num_trials[i] * keep + 1;
    num_accepted[i] = num_accepted[i] * keep + (position < accepted ? 1 : 0);
  }
}

void DraftTrials::add(const DraftTrials& step) {
  for (size_t i = 0; i < num_trials.size(); ++i) {
    const double tried = step.num_trials[i];
    const double half_life =
        tried > 0 ? std::clamp(kBatchHalfLife / tried, kFewestTriedSteps, kMostTriedSteps) : kUntriedHalfLife;
    num_trials[i] = num_trials[i] * keep(half_life) + tried;
    num_accepted[i] = num_accepted[i] * keep(half_life) + step.num_accepted[i];
  }
}

void DraftTrials::doubt() {
  for (double& count : num_trials) count *= kKeptInDoubt;
  for (double& count : num_accepted) count *= kKeptInDoubt;
}

DraftRates BatchAcceptance::prior() {
  DraftRates rates;
  rates.fill(kPriorRate);
  return rates;
}

DraftRates BatchAcceptance::prior_deviations() {
  DraftRates deviations;
  deviations.fill(std::sqrt(kPriorRate * (1 - kPriorRate) / (kPreviousTrials + 1)));
  return deviations;
}

void BatchAcceptance::add_step(const DraftTrials& step) {
  trials_.add(step);
  double previous = kPriorRate;
  for (size_t i = 0; i < rates_.size(); ++i) {
    const double count = trials_.num_trials[i] + kPreviousTrials;
    rates_[i] = previous = (trials_.num_accepted[i] + kPreviousTrials * previous) / count;
    deviations_[i] = std::sqrt(previous * (1 - previous) / (count + 1));
  }
}

DraftRates request_rates(const DraftTrials& trials, const DraftRates& batch) {
  DraftRates rates;
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] = (trials.num_accepted[i] + kBatchTrials * batch[i]) / (trials.num_trials[i] + kBatchTrials);
  }
  return rates;
}

void add_round(DraftTrials& trials, int32_t num_drafts, int32_t num_accepted) {
  trials.add(num_drafts, num_accepted, keep(kRequestHalfLife));
}

void add_idle_step(DraftTrials& trials) { trials.add({}, 1, keep(kIdleHalfLife)); }

}  // namespace eagle31rt
