// Drafts one chain per request with an EAGLE head.
//
// Per request it keeps the layer output of the last observed slot, H floats; everything else is in the draft KV.
// observe() of m + 1 positions costs one pass over m + 1 rows; propose() of K tokens costs K heads and K - 1 passes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/eagle_draft.h"
#include "model/forward_batch.h"
#include "ops/sample/sample.h"
#include "spec/drafter.h"

namespace eagle31rt {

class ChainDrafter : public Drafter {
 public:
  struct Config {
    int32_t num_slots;
    int32_t page_size;
    bool draw;  // draw drafts from the head's law (temperature only) instead of taking its most probable token
  };

  ChainDrafter(EagleDraft& draft, KvStorage& kv, const Config& config);

  void begin(int32_t slot, int32_t num_observed = 0, int32_t first_visible_entry = 1) override;
  void observe(std::span<const Observation> observations, ExecutionContext& context) override;
  void propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) override;
  void accept(int32_t slot, int32_t num_accepted) override;
  void release(int32_t slot) override;
  int32_t num_observed(int32_t slot) const override { return slots_[static_cast<size_t>(slot)].num_observed; }

 private:
  struct Slot {
    bool in_use = false;
    int32_t num_observed = 0;
    int32_t first_visible_entry = 1;
    int32_t num_proposed = 0;
    std::vector<float> last_state;  // [hidden_size] layer output of the last observed slot
  };

  Slot& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }
  void start(std::span<const DraftRequest> requests, Proposals& proposals);
  void advance(std::span<const DraftRequest> requests, const Proposals& proposals, int32_t step,
               ExecutionContext& context);
  void choose_tokens(std::span<const DraftRequest> requests, int32_t step, const float* logits,
                     ExecutionContext& context);

  EagleDraft& draft_;
  KvStorage& kv_;
  Config config_;
  std::vector<Slot> slots_;
  ForwardBatch batch_;
  Scratch captured_, feature_, states_, logits_, law_;
  // Of the proposal under way: requests that want a token of this step, one row of states_ each, and their draws.
  std::vector<size_t> active_;
  std::vector<SamplingRow> rows_;
  std::vector<int32_t> draft_ids_;
};

}  // namespace eagle31rt
