// One decode step of a batch on the device, from the requests' state to their results, without a word from the host in
// between: propose, verify, commit, observe. The host gives the batch (slots and numbers of drafts) and reads results.
//
// A batch is padded to a bucket (1, 2, 4, ... max_num_seqs requests) of R rows each, so that few shapes occur and each
// can be recorded as a graph: the first time a shape runs launch by launch, the second time it is recorded, from then
// on it is one launch. If some request has processors (row_processors.h) or wants log-probabilities, the step runs
// launch by launch, and the host reads the drafts in the middle of it.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "engine/device_step.h"
#include "engine/row_logprobs.h"
#include "engine/row_processors.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"

namespace eagle31rt {

class DecodePass {
 public:
  DecodePass(const DeviceModels& models, const DeviceStepConfig& config, DeviceState& state, StepMemory& memory);

  // Starts the step. Afterwards memory.results holds, for request i, rows_per_request() + 1 numbers: accepted drafts
  // (-1: a row had no finite logit) and the emitted ids. Only for 1 .. max_num_seqs decoding requests that have
  // entered. Fills `error` of requests that fail by their own fault.
  void launch(std::span<ScheduledRequest> requests);
  // After the device has been waited for: log-probabilities of the last launch go to its requests.
  void take_logprobs() { logprobs_.take(); }

  int32_t num_requests() const { return shape_.num_requests; }  // of the last launch, padding included
  int32_t rows_per_request() const { return shape_.rows_per_request; }
  // Of what was launched since it was made, recorded steps.
  int64_t num_graph_launches() const { return num_graph_launches_; }

 private:
  // Everything that changes an argument of an operator.
  struct Shape {
    int32_t num_requests = 0;
    int32_t rows_per_request = 0;
    bool observes = false;  // a draft follows some request
    bool masks = false;     // ids of some row are held back
    auto operator<=>(const Shape&) const = default;
    int64_t num_rows() const { return int64_t{num_requests} * rows_per_request; }
  };
  struct RecordedShape {
    bool was_run = false;
    std::unique_ptr<DeviceGraph> graph;
  };

  void prepare(std::span<const ScheduledRequest> requests);
  void send_masks(std::span<const ScheduledRequest> requests);
  bool collect_masks(std::span<const ScheduledRequest> requests);
  std::span<const int32_t> drafts(size_t request, int32_t count) const;
  void run_or_replay(RecordedShape& recorded);
  // requests: those that the host looks at in the middle of the step; none in a recorded step.
  void run(std::span<ScheduledRequest> requests);
  void read_drafts();
  void process_rows(std::span<ScheduledRequest> requests);
  void propose();
  void verify();
  void observe();
  BatchView view(int64_t rows_per_request) const;
  StepRowsParams step_rows(StepRowsMode mode) const;
  bool draws() const { return config_.draw_drafts && shape_.rows_per_request > 1; }

  DeviceModels models_;
  const DeviceStepConfig& config_;
  DeviceState& state_;
  StepMemory& memory_;
  ExecutionContext draft_context_;  // drafting is timed as a whole

  Shape shape_;
  std::map<Shape, RecordedShape> shapes_;
  uint64_t memory_epoch_ = 0;  // under which the graphs of shapes_ were recorded
  int64_t num_graph_launches_ = 0;

  // The batch, on its way to the device.
  std::vector<int32_t> request_slots_, num_drafts_, request_of_slot_, masked_begin_, masked_ids_;
  std::vector<int32_t> host_draft_ids_;  // as draft_token_ids_; -1 where the host has not read them
  UploadBuffer upload_, upload_of_masks_;
  Uploaded<int32_t> slots_at_, num_drafts_at_, request_of_slot_at_;
  const int32_t *masked_begin_at_ = nullptr, *masked_ids_at_ = nullptr;  // on the device

  RowProcessors processors_;
  RowLogprobs logprobs_;

  DeviceBuffer page_table_;  // [requests, page table stride], in the order of the batch
  DeviceBuffer token_ids_, positions_, kv_slots_, row_begin_, kv_begin_, kv_length_, sampling_, acceptance_rates_;
  DeviceBuffer draft_token_ids_, drawn_ids_, num_accepted_, emitted_, last_rows_;
  DeviceBuffer states_;        // float [requests, draft hidden size]
  DeviceBuffer draft_logits_;  // float [requests, draft vocabulary], or of all rows if drafts are drawn
  DeviceArray<float> rates_;
};

}  // namespace eagle31rt
