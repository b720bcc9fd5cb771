// How likely draft i of a request stands if those before it do.
//
// A trial is a draft that was verified with all drafts before it accepted. A request's own trials are weighed against
// what the batch shows at the same position, so that a new request begins with the batch's rate, and an unusual one
// has its own after some ten rounds. A position that was never tried begins with the rate of the one before it.
#pragma once

#include <array>
#include <cstdint>

namespace eagle31rt {

constexpr int32_t kMaxDraftPositions = 16;
using DraftRates = std::array<double, kMaxDraftPositions>;

struct DraftTrials {
  DraftRates num_trials{}, num_accepted{};

  // A round of `num_drafts` of which `accepted` stood; at the positions that it tried, older trials lose weight.
  void add(int32_t num_drafts, int32_t accepted, double keep);
  // All of a step's rounds at once: what was there before loses weight once.
  void add(const DraftTrials& step);
  // Something has changed: little of what was seen counts.
  void doubt();
};

class BatchAcceptance {
 public:
  void add_step(const DraftTrials& step);
  void doubt() { trials_.doubt(); }
  const DraftRates& rates() const { return rates_; }
  // Standard deviations of these.
  const DraftRates& deviations() const { return deviations_; }

 private:
  static DraftRates prior();
  static DraftRates prior_deviations();

  DraftTrials trials_;
  DraftRates rates_ = prior(), deviations_ = prior_deviations();
};

// P(draft i stands | those before it stand) of one request.
DraftRates request_rates(const DraftTrials& trials, const DraftRates& batch);
// After a round of the request.
void add_round(DraftTrials& trials, int32_t num_drafts, int32_t num_accepted);
// After a step in which it ran without drafts.
void add_idle_step(DraftTrials& trials);

}  // namespace eagle31rt
