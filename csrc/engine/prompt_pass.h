// The prompt chunks of a step on the device: rows made by the host, uploaded in one copy. A prompt that ends here
// samples its first token and enters the requests' state; the draft observes the chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device_step.h"
#include "engine/row_logprobs.h"
#include "engine/row_processors.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"
#include "model/forward_batch.h"
#include "model/scratch.h"

namespace eagle31rt {

class PromptPass {
 public:
  PromptPass(const DeviceModels& models, const DeviceStepConfig& config, DeviceState& state, StepMemory& memory);

  // Starts the pass over 1 or more chunks, which it reorders. Afterwards `results` (device memory) holds two numbers
  // for every chunk that needs logits, in order: 0 and its token, or -1 twice where no id can be chosen. Fills `error`
  // of requests that fail by their own fault.
  void launch(std::span<ScheduledRequest> chunks, int32_t* results);
  // After the device has been waited for: log-probabilities of the last launch go to its requests.
  void take_logprobs() { logprobs_.take(); }

 private:
  void build(std::span<ScheduledRequest> chunks);
  void add_chunk(ScheduledRequest& chunk);
  void add_sampled_row(ScheduledRequest& chunk);
  void add_observation(const ScheduledRequest& chunk);
  void upload();
  float* logits();
  void process_rows(std::span<ScheduledRequest> chunks);
  void sample(int32_t* results);
  void observe();

  DeviceModels models_;
  const DeviceStepConfig& config_;
  DeviceState& state_;
  StepMemory& memory_;
  ExecutionContext draft_context_;  // drafting is timed as a whole

  // Host side. Chunks that a draft follows come first, so that their features are one piece.
  ForwardBatch rows_, draft_rows_;
  std::vector<int32_t> logit_rows_, finishing_slots_, one_row_each_, masked_begin_, masked_ids_;
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> sampled_slots_;  // [draft rows] the slot whose newest token the row is fed; -1: it is known
  std::vector<int32_t> last_rows_;      // [num_slots]

  UploadBuffer upload_;
  UploadedBatch rows_at_, draft_rows_at_;
  Uploaded<int32_t> logit_rows_at_, finishing_slots_at_, one_row_each_at_, masked_begin_at_, masked_ids_at_;
  Uploaded<int32_t> sampled_slots_at_, last_rows_at_;
  Uploaded<SamplingRow> sampling_at_;

  RowProcessors processors_;
  RowLogprobs logprobs_;
  Scratch prompt_logits_;  // for more rows than StepMemory::logits has: prompts that want log-probabilities
  DeviceBuffer num_accepted_, emitted_, draft_token_ids_;
};

}  // namespace eagle31rt
