#include "spec/controller.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace eagle31rt {

namespace {

constexpr double kBegin = 1.05, kEnd = 1.02;  // of plain decoding's tokens per second
constexpr double kHysteresis = 0.02;          // a chain length is left for another that is so much better
// While it speculates, a plain step comes at least so often, and while it does not, a probe: steps.
constexpr int64_t kPlainEvery = 128, kUntrustedPlainEvery = 16, kSpeculationDue = 64;
constexpr int32_t kTrustedSamples = 5;
constexpr double kUncertainPlain = 0.25;  // relative deviation: then every other step is plain
constexpr int64_t kFirstPlainSteps = 3;   // what all else is held against
constexpr size_t kLeastProbeDrafts = 4;   // but one for a request alone
constexpr double kAssumedDraftShare = 0.1, kAssumedDraftDeviation = 0.5;  // of a plain step, before the first pass
constexpr int32_t kProbabilityBins = 1024;

// The cost of a batch while drafts are added to it.
class BatchSum {
 public:
  BatchSum(const std::vector<double>& verify, const std::vector<double>& draft, const std::vector<double>& observe,
           int64_t num_requests)
      : verify_(verify), draft_(draft), observe_(observe), tokens_(static_cast<double>(num_requests)) {}

  void add(int32_t position, double probability) {
    size_t& active = active_[static_cast<size_t>(position)];
    draft_seconds_ += draft_[active + 1] - draft_[active];
    active += 1;
    num_drafts_ += 1;
    tokens_ += probability;
  }
  size_t num_drafts() const { return num_drafts_; }
  size_t num_at(int32_t position) const { return active_[static_cast<size_t>(position)]; }
  double tokens() const { return tokens_; }
  double seconds() const { return verify_[num_drafts_] + draft_seconds_ + observe_[active_[0]]; }

 private:
  const std::vector<double>&verify_, &draft_, &observe_;
  std::array<size_t, kMaxDraftPositions> active_{};
  size_t num_drafts_ = 0;
  double tokens_, draft_seconds_ = 0;
};

}  // namespace

const char* choice_reason_name(ChoiceReason reason) {
  constexpr const char* kNames[] = {"fixed", "no draft", "plain", "best", "probe", "back-off"};
  return kNames[static_cast<size_t>(reason)];
}

SpeculationController::SpeculationController(int32_t max_drafts, bool equal_lengths)
    : max_drafts_(max_drafts), equal_lengths_(equal_lengths) {
  E31_INVARIANT(max_drafts >= 0 && max_drafts <= kMaxDraftPositions);
}

const SpeculationChoice& SpeculationController::choose(std::span<const ControllerRequest> requests) {
  now_ += 1;
  num_requests_ = std::ssize(requests);
  context_ = 0;
  for (const ControllerRequest& request : requests) context_ += request.context;
  choice_.num_drafts.assign(requests.size(), 0);
  update_curves();
  order_drafts(requests);
  const Candidate plain{.tokens = static_cast<double>(num_requests_), .seconds = plain_seconds()};
  candidates_.assign(1, plain);
  if (ordered_.empty() || num_plain_steps_ < kFirstPlainSteps) {
    take(0, plain, ordered_.empty() ? ChoiceReason::kNoDraft : ChoiceReason::kPlain);
    return choice_;
  }
  const Costs costs = step_costs(/*optimism=*/0);
  find_candidates(costs, /*least_drafts=*/1, candidates_);
  if (back_off_left_ > 0) {
    back_off_left_ -= 1;
    current_length_ = 0;
    take(0, plain, ChoiceReason::kBackOff);
    return choice_;
  }
  current_length_ = keep_or_change(best_length(candidates_));
  const Candidate& best = *candidates_[static_cast<size_t>(current_length_)];
  best_rate_ = best.rate();
  if (const std::optional<Probe> probe = affordable_probe(costs, best)) {
    take(probe->longest, probe->candidate, ChoiceReason::kProbe);
  } else {
    take(current_length_, best, current_length_ == 0 ? ChoiceReason::kPlain : ChoiceReason::kBest);
  }
  return choice_;
}

void SpeculationController::update_curves() {
  plain_curve_ = plain_.curve(context_, now_, &verify_);
  verify_curve_ = verify_.curve(context_, now_, &plain_);
  draft_curve_ = draft_.curve(context_, now_);
  observe_curve_ = observe_.curve(context_, now_);
}

double SpeculationController::plain_seconds() const {
  return plain_curve_.seconds(num_requests_) * std::exp(log_slowness_);
}

DraftRates SpeculationController::rates(int64_t request_id) const {
  const auto found = trials_.find(request_id);
  return request_rates(found == trials_.end() ? DraftTrials{} : found->second, acceptance_.rates());
}

// By falling probability, in kProbabilityBins steps; equal ones by position, so that a chain's drafts stay in order.
void SpeculationController::order_drafts(std::span<const ControllerRequest> requests) {
  unordered_.clear();
  ordered_.clear();
  std::vector<DraftRates> stands(requests.size());  // P(the drafts up to a position are all accepted)
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].max_drafts <= 0) continue;
    stands[i] = rates(requests[i].id);
    for (size_t position = 1; position < stands[i].size(); ++position) stands[i][position] *= stands[i][position - 1];
  }
  std::array<size_t, kProbabilityBins + 1> begin{};
  const auto bin = [](double probability) { return static_cast<size_t>((1 - probability) * (kProbabilityBins - 1)); };
  for (int32_t position = 0; position < max_drafts_; ++position) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].max_drafts <= position) continue;
      const double probability = stands[i][static_cast<size_t>(position)];
      unordered_.push_back({static_cast<int32_t>(i), position, probability});
      begin[bin(probability) + 1] += 1;
    }
  }
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  ordered_.resize(unordered_.size());
  for (const Draft& draft : unordered_) ordered_[begin[bin(draft.probability)]++] = draft;
}

// optimism: by how many deviations costs are lower and rates higher than expected.
SpeculationController::Costs SpeculationController::step_costs(double optimism) const {
  const double slowness = std::exp(log_slowness_);
  const auto seconds = [&](const CostCurve& curve, int64_t rows) {
    return slowness * curve.seconds(rows) * (optimism > 0 ? std::exp(-optimism * curve.deviation(rows)) : 1.0);
  };
  Costs costs;
  costs.verify.resize(ordered_.size() + 1);
  for (size_t i = 0; i < costs.verify.size(); ++i) {
    costs.verify[i] = seconds(verify_curve_, num_requests_ + static_cast<int64_t>(i));
  }
  const double assumed = kAssumedDraftShare * plain_seconds() * std::exp(-optimism * kAssumedDraftDeviation);
  costs.draft.assign(static_cast<size_t>(num_requests_) + 1, 0.0);
  costs.observe = costs.draft;
  for (int64_t n = 1; n <= num_requests_; ++n) {
    const auto i = static_cast<size_t>(n);
    costs.draft[i] = draft_curve_.empty() ? assumed : seconds(draft_curve_, n);
    costs.observe[i] = seconds(observe_curve_, n);
  }
  double likelier = accepted_bias_;
  for (size_t position = 0; position < costs.likelier.size(); ++position) {
    const double rate = acceptance_.rates()[position];
    likelier *= std::min(1 + optimism * acceptance_.deviations()[position] / rate, 1 / rate);
    costs.likelier[position] = likelier;
  }
  return costs;
}

// The best beginning of the order without what is deeper than `longest`; it has a chain that is so long.
std::optional<SpeculationController::Candidate> SpeculationController::best_candidate(const Costs& costs,
                                                                                      int32_t longest,
                                                                                      size_t least_drafts) const {
  BatchSum sum(costs.verify, costs.draft, costs.observe, num_requests_);
  std::optional<Candidate> best;
  if (equal_lengths_) {
    least_drafts = static_cast<size_t>(
        std::ranges::count_if(ordered_, [longest](const Draft& draft) { return draft.position < longest; }));
  }
  // What is unknown is entered in steps: at most twice the rows that were ever run.
  const int64_t most_drafts = 2 * std::max(most_rows_, num_requests_) - num_requests_;
  for (const Draft& draft : ordered_) {
    if (draft.position >= longest) continue;
    if (static_cast<int64_t>(sum.num_drafts()) == most_drafts) break;
    sum.add(draft.position, std::min(1.0, draft.probability * costs.likelier[static_cast<size_t>(draft.position)]));
    if (sum.num_at(longest - 1) == 0 || sum.num_drafts() < least_drafts) continue;
    const double seconds = sum.seconds();
    if (!best || sum.tokens() * best->seconds > best->tokens * seconds) {
      best = Candidate{.num_drafts = sum.num_drafts(), .tokens = sum.tokens(), .seconds = seconds};
    }
  }
  return best;
}

SpeculationController::Candidate SpeculationController::evaluate(const Costs& costs, int32_t longest,
                                                                 size_t num_drafts) const {
  BatchSum sum(costs.verify, costs.draft, costs.observe, num_requests_);
  for (const Draft& draft : ordered_) {
    if (sum.num_drafts() == num_drafts) break;
    if (draft.position >= longest) continue;
    sum.add(draft.position, std::min(1.0, draft.probability * costs.likelier[static_cast<size_t>(draft.position)]));
  }
  return {.num_drafts = num_drafts, .tokens = sum.tokens(), .seconds = sum.seconds()};
}

// Appends the candidate of each chain length from 1 on.
void SpeculationController::find_candidates(const Costs& costs, size_t least_drafts,
                                            std::vector<std::optional<Candidate>>& found) const {
  for (int32_t longest = 1; longest <= max_drafts_; ++longest) {
    found.push_back(best_candidate(costs, longest, least_drafts));
  }
}

int32_t SpeculationController::best_length(const std::vector<std::optional<Candidate>>& candidates) {
  size_t best = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (!candidates[i]) continue;
    if (!candidates[best] || candidates[i]->rate() > candidates[best]->rate()) best = i;
  }
  return static_cast<int32_t>(best);
}

// Speculation begins and ends with a margin, as estimates are a few percent off: plain decoding is never a mistake.
int32_t SpeculationController::keep_or_change(int32_t best) const {
  const double plain = candidates_[0]->rate(), found = candidates_[static_cast<size_t>(best)]->rate();
  if (found < plain * (current_length_ == 0 ? kBegin : kEnd)) return 0;
  const std::optional<Candidate>& current = candidates_[static_cast<size_t>(current_length_)];
  if (!current || current_length_ == 0) return best;
  return found > current->rate() * (1 + kHysteresis) ? best : current_length_;
}

// A plain step is due: what speculation is held against must not be believed for ever.
bool SpeculationController::is_plain_due() const {
  if (current_length_ == 0) return false;
  const int64_t age = now_ - last_plain_;
  if (plain_curve_.deviation(num_requests_) > kUncertainPlain) return age > 1;
  return age > (plain_.num_samples(num_requests_, context_) < kTrustedSamples ? kUntrustedPlainEvery : kPlainEvery);
}

// What would be chosen besides the best if costs and rates were a deviation better than they seem, and can be paid for.
std::optional<SpeculationController::Probe> SpeculationController::affordable_probe(const Costs& costs,
                                                                                    const Candidate& best) const {
  if (is_plain_due()) return Probe{0, *candidates_[0]};
  if (probe_credit_ < kLeastLoss * best.seconds) return std::nullopt;
  const bool is_plain = current_length_ == 0;
  std::vector<std::optional<Candidate>> optimistic(1);
  find_candidates(step_costs(/*optimism=*/1), std::min(kLeastProbeDrafts, static_cast<size_t>(num_requests_)),
                  optimistic);
  optimistic[static_cast<size_t>(current_length_)].reset();
  const int32_t longest = best_length(optimistic);
  const std::optional<Candidate>& found = optimistic[static_cast<size_t>(longest)];
  if (!found) return std::nullopt;
  const bool is_due = is_plain && now_ - last_speculation_ > kSpeculationDue;
  if (!is_due && found->rate() < best.rate() * (1 + kHysteresis)) return std::nullopt;
  const Candidate expected = evaluate(costs, longest, found->num_drafts);
  return can_pay(expected, best) ? std::optional<Probe>({longest, expected}) : std::nullopt;
}

bool SpeculationController::can_pay(const Candidate& probe, const Candidate& best) const {
  return probe_credit_ >= probe_loss(probe.seconds, probe.tokens, best.rate(), best.seconds);
}

void SpeculationController::take(int32_t longest, const Candidate& candidate, ChoiceReason reason) {
  choice_.reason = reason;
  choice_.num_draft_steps = longest;
  choice_.num_draft_rows = static_cast<int64_t>(candidate.num_drafts);
  choice_.expected_tokens = candidate.tokens;
  choice_.expected_seconds = candidate.seconds;
  choice_.plain_seconds = candidates_[0]->seconds;
  size_t left = candidate.num_drafts;
  for (const Draft& draft : ordered_) {
    if (left == 0) break;
    if (draft.position >= longest) continue;
    choice_.num_drafts[static_cast<size_t>(draft.request)] += 1;
    left -= 1;
  }
}

}  // namespace eagle31rt
