// How many drafts each request gets in a step, none included, so that the batch yields most tokens per second.
//
// A pure function of what it is told: no clock, no randomness, so a recorded trace gives the same choices again. A step
//
//   choose     orders all drafts that could be made by the probability that they are accepted; for each longest chain
//              the best beginning of that order is a candidate: its tokens per second are (requests + accepted drafts)
//              / (verify pass + draft passes + observing), against requests / plain step for drafting nothing
//   observe    what the step cost and what was accepted corrects the estimates (cost_table.h, acceptance_estimate.h)
//
// The best candidate is taken; the last step's chain length stays unless another is better by kHysteresis. A share of
// 1 % of the time pays for probes, steps that run what is second best under optimistic estimates: costs and
// rates that are not seen would be believed for ever. And every kWindowSteps speculative steps what they yielded is
// held against what plain steps would have: where speculation lost, plain decoding follows for a while that doubles
// each time. So an error of the model costs a bounded share, whatever it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "spec/acceptance_estimate.h"
#include "spec/cost_table.h"

namespace eagle31rt {

struct ControllerRequest {
  int64_t id;
  int32_t max_drafts;  // 0 .. kMaxDraftPositions; what the request allows and has room for
  int64_t context;     // KV entries that its rows read
};

struct RoundOutcome {
  int64_t id;
  int32_t num_drafts;
  int32_t num_accepted;
};

// Of one step, in seconds. Steps that also compute prompts say nothing about decoding: only outcomes count of them.
struct StepCosts {
  double draft_seconds = 0;     // proposing; negative: not known apart from target_seconds, which then holds it
  double observe_seconds = 0;   // following what was verified
  double catch_up_seconds = 0;  // once, for drafting that was off before
  double target_seconds = 0;    // all else
  bool has_prompts = false;
};

enum class ChoiceReason {
  kFixed,    // no controller
  kNoDraft,  // no request may draft
  kPlain,    // nothing beats plain decoding
  kBest,     // most tokens per second
  kProbe,    // to measure what would not be chosen
  kBackOff,  // speculation lost against plain decoding lately
};

// "fixed", "no draft", "plain", "best", "probe", "back-off".
const char* choice_reason_name(ChoiceReason reason);

struct SpeculationChoice {
  ChoiceReason reason = ChoiceReason::kNoDraft;
  int32_t num_draft_steps = 0;  // the longest chain
  int64_t num_draft_rows = 0;   // drafts of all requests
  double expected_tokens = 0;
  double expected_seconds = 0;
  double plain_seconds = 0;         // of the step without drafts
  std::vector<int32_t> num_drafts;  // of each request
};

class SpeculationController {
 public:
  // equal_lengths: a step runs as many rows for every request, so all get drafts or none does.
  explicit SpeculationController(int32_t max_drafts, bool equal_lengths = false);

  // The reference is valid until the next call. max_drafts of a request above that of the controller count as it.
  const SpeculationChoice& choose(std::span<const ControllerRequest> requests);
  // What the step that was chosen last did; one outcome for each of its requests, with the drafts that were run.
  void observe(std::span<const RoundOutcome> outcomes, const StepCosts& costs);
  // Another draft: what was seen of acceptance is of the old one.
  void forget_acceptance();
  void forget(int64_t request_id) { trials_.erase(request_id); }

  double probe_seconds_left() const { return probe_credit_; }
  // Estimates of P(draft i stands | those before it stand) for a request, known or not.
  DraftRates rates(int64_t request_id) const;

 private:
  static constexpr double kLeastLoss = 0.1;  // of a probe, in steps: so the share also limits probes that lose nothing

  struct Draft {
    int32_t request, position;  // position 0 is the first draft
    double probability;         // that it is accepted
  };
  // A way to run the step. Trees fit in: rows, draft passes, expected tokens.
  struct Candidate {
    size_t num_drafts = 0;  // the first so many of ordered_ that are not deeper than the candidate's chain
    double tokens = 0, seconds = 0;
    double rate() const { return tokens / seconds; }
  };
  // Costs of a step by what it runs, in seconds at the speed of the machine now.
  struct Costs {
    std::vector<double> verify, draft, observe;  // by rows beyond the requests' own, by requests that draft (both)
    DraftRates likelier{};                       // factors on the probability of drafts by position
  };
  // Since when speculation is watched, against plain decoding.
  struct Window {
    int32_t num_steps = 0;
    double seconds = 0, plain_seconds = 0, accepted = 0, expected_accepted = 0;
  };

  struct Probe {
    int32_t longest;
    Candidate candidate;
  };

  // controller.cpp
  void update_curves();
  double plain_seconds() const;
  void order_drafts(std::span<const ControllerRequest> requests);
  Costs step_costs(double optimism) const;
  std::optional<Candidate> best_candidate(const Costs& costs, int32_t longest, size_t least_drafts) const;
  Candidate evaluate(const Costs& costs, int32_t longest, size_t num_drafts) const;
  void find_candidates(const Costs& costs, size_t least_drafts, std::vector<std::optional<Candidate>>& found) const;
  static int32_t best_length(const std::vector<std::optional<Candidate>>& candidates);
  int32_t keep_or_change(int32_t best) const;
  bool is_plain_due() const;
  std::optional<Probe> affordable_probe(const Costs& costs, const Candidate& best) const;
  bool can_pay(const Candidate& probe, const Candidate& best) const;
  void take(int32_t longest, const Candidate& candidate, ChoiceReason reason);

  // controller_learning.cpp
  void notice_shift(double accepted, double expected);
  void learn_acceptance(std::span<const RoundOutcome> outcomes);
  void learn_plain_cost(double seconds);
  void learn_costs(std::span<const int64_t> num_drafting, StepCosts costs);
  void learn_draft_cost(std::span<const int64_t> num_drafting, double seconds);
  void learn_slowness(double seconds, double expected);
  void pay_probes(double tokens, double seconds);
  static double probe_loss(double seconds, double tokens, double best_rate, double best_seconds);
  void watch(int64_t num_accepted, double seconds);

  int32_t max_drafts_;
  bool equal_lengths_;
  int64_t now_ = 0;  // steps
  // Seconds are kept at the speed of a common clock: when everything takes twice as long, choices stay.
  double log_slowness_ = 0;
  // A target is on the way from memory- to compute-bound; a head, an order of magnitude smaller, hardly.
  CostTable plain_{0.35}, verify_{0.35}, draft_{0.05}, observe_{0.05};
  CostCurve plain_curve_, verify_curve_, draft_curve_, observe_curve_;
  BatchAcceptance acceptance_;
  std::unordered_map<int64_t, DraftTrials> trials_;

  // Of the step under way.
  int64_t num_requests_ = 0, context_ = 0;
  std::vector<Draft> unordered_, ordered_;            // by falling probability
  std::vector<std::optional<Candidate>> candidates_;  // by longest chain; 0 = plain
  SpeculationChoice choice_;

  int32_t current_length_ = 0;
  double best_rate_ = 0;  // of what a probe displaced
  double probe_credit_ = 0;
  bool has_credit_ = false;
  int64_t most_rows_ = 0;  // that a step has run
  int64_t num_plain_steps_ = 0, last_plain_ = 0, last_speculation_ = 0;
  double accepted_bias_ = 1;  // accepted drafts, of those expected
  bool was_run_as_chosen_ = false;
  int64_t recent_requests_ = 0;
  double recent_accepted_ = 0, recent_expected_ = 0;
  Window window_;
  int32_t back_off_left_ = 0, next_back_off_ = 0;
};

}  // namespace eagle31rt
