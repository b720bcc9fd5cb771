// What every drafter with an EAGLE head does: it keeps, for each request, the layer output of the last observed slot, H
// floats; everything else is in the draft KV. observe() of m + 1 positions costs one pass over m + 1 rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/eagle_draft.h"
#include "model/forward_batch.h"
#include "model/scratch.h"
#include "spec/drafter.h"

namespace eagle31rt {

class EagleDrafter : public Drafter {
 public:
  EagleDrafter(EagleDraft& draft, KvStorage& kv, int32_t num_slots, int32_t page_size);

  void begin(int32_t slot, int32_t num_observed = 0, int32_t first_visible_entry = 1) override;
  void observe(std::span<const Observation> observations, ExecutionContext& context) override;
  void accept(int32_t slot, int32_t num_accepted) override;
  void release(int32_t slot) override;
  int32_t num_observed(int32_t slot) const override { return slots_[static_cast<size_t>(slot)].num_observed; }

 protected:
  // The pair (feature p, token p + 1) is KV entry p + 1; entry 0 is never written and never visible.
  static constexpr int32_t kPositionOffset = -1;

  struct Slot {
    bool in_use = false;
    int32_t num_observed = 0;
    int32_t first_visible_entry = 1;
    int32_t num_proposed = 0;       // the longest path
    std::vector<float> last_state;  // [hidden_size] layer output of the last observed slot
  };

  Slot& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }
  // Row i becomes the last state of request i.
  void copy_last_states(std::span<const DraftRequest> requests, float* states);
  static void copy_row(float* destination, const float* source, int64_t size);
  static int32_t most_pages(std::span<const DraftRequest> requests);

  EagleDraft& draft_;
  KvStorage& kv_;
  int32_t page_size_;
  ForwardBatch batch_;

 private:
  std::vector<Slot> slots_;
  Scratch captured_, feature_;
};

}  // namespace eagle31rt
