// Drafts one chain per request with an EAGLE head: propose() of K tokens costs K heads and K - 1 passes.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/sample.h"
#include "spec/eagle_drafter.h"

namespace eagle31rt {

class ChainDrafter : public EagleDrafter {
 public:
  struct Config {
    int32_t num_slots;
    int32_t page_size;
    bool draw;  // draw drafts from the head's law (temperature only) instead of taking its most probable token
  };

  ChainDrafter(EagleDraft& draft, KvStorage& kv, const Config& config)
      : EagleDrafter(draft, kv, config.num_slots, config.page_size), draw_(config.draw) {}

  void propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) override;

 private:
  int32_t start(std::span<const DraftRequest> requests, Proposals& proposals);
  void advance(std::span<const DraftRequest> requests, const Proposals& proposals, int32_t step,
               ExecutionContext& context);
  void choose_tokens(std::span<const DraftRequest> requests, int32_t step, const float* logits,
                     ExecutionContext& context);

  bool draw_;
  Scratch states_, logits_, law_;
  // Of the proposal under way: requests that want a token of this step, one row of states_ each, and their draws.
  std::vector<size_t> active_;
  std::vector<SamplingRow> rows_;
  std::vector<int32_t> draft_ids_;
};

}  // namespace eagle31rt
