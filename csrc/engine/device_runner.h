// Runs the rows of a step where the device keeps the requests' state, and brings back what was emitted.
//
// The host decides who runs and how many drafts are tried; everything that the next pass needs from the last one stays
// on the device. A step waits for the device once, for one small array:
//
//   results   for each request of the decode batch, padding included: accepted drafts or -1, then rows_per_request ids
//             (-1 behind the last); then for each prompt that ended: 0 or -1, then its token
//
// Written against Device and Ops only, so it runs on the CPU as well.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/decode_pass.h"
#include "engine/device_state.h"
#include "engine/device_step.h"
#include "engine/prompt_pass.h"

namespace eagle31rt {

class DeviceRunner {
 public:
  // Allocates everything that a step of up to max_num_seqs requests and max_prompt_rows needs. Throws Error(kResource).
  DeviceRunner(const DeviceModels& models, DeviceStepConfig config);

  // The request takes `request.slot`; what the slot held before is forgotten.
  void enter(const RequestState& request);

  // One step. decode: requests that are decoding, with their drafts; prompts: chunks. Fills num_accepted and
  // first_logit_row (into results()) of every entry that needs logits. Throws Error(kDevice | kResource): then nothing
  // of the step counts, and the requests in it have lost their state.
  void run(std::span<ScheduledRequest> decode, std::span<ScheduledRequest> prompts);

  // Ids that the last step emitted; run_of an entry begins at its first_logit_row.
  const int32_t* results() const { return host_results_.as<int32_t>(); }
  int64_t num_graph_launches() const { return decode_.num_graph_launches(); }

 private:
  // Number of results that it will leave.
  int64_t run_decode(std::span<ScheduledRequest> decode);
  void read_back(int64_t host_offset, int64_t num_results);
  void take_decode_results(std::span<ScheduledRequest> decode, int64_t offset);
  void take_prompt_results(std::span<ScheduledRequest> prompts, int64_t offset);
  void take_result(ScheduledRequest& entry, int64_t offset);

  DeviceModels models_;
  DeviceStepConfig config_;
  DeviceState state_;
  StepMemory memory_;
  HostBuffer host_results_;
  DecodePass decode_;
  PromptPass prompts_;
};

}  // namespace eagle31rt
