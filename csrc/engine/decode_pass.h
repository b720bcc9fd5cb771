// One decode step of a batch on the device, from the requests' state to their results, without a word from the host in
// between: propose, verify, commit, observe. The host gives the batch (slots and numbers of drafts) and reads results.
//
// A batch is padded to a bucket (1, 2, 4, ... max_num_seqs requests) of R rows each, so that few shapes occur and each
// can be recorded as a graph: the first time a shape runs launch by launch, the second time it is recorded, from then
// on it is one launch.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "engine/device_step.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"

namespace eagle31rt {

class DecodePass {
 public:
  DecodePass(const DeviceModels& models, const DeviceStepConfig& config, DeviceState& state, StepMemory& memory);

  // Starts the step. Afterwards memory.results holds, for request i, rows_per_request() + 1 numbers: accepted drafts
  // (-1: a row had no finite logit) and the emitted ids. Only for 1 .. max_num_seqs decoding requests that have
  // entered.
  void launch(std::span<const ScheduledRequest> requests);

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
    bool masks = false;     // min_tokens holds back ids of some row
    auto operator<=>(const Shape&) const = default;
    int64_t num_rows() const { return int64_t{num_requests} * rows_per_request; }
  };
  struct RecordedShape {
    bool was_run = false;
    std::unique_ptr<DeviceGraph> graph;
  };

  void prepare(std::span<const ScheduledRequest> requests);
  bool collect_masks(std::span<const ScheduledRequest> requests);
  void run_or_replay(RecordedShape& recorded);
  void run();
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
  UploadBuffer upload_;
  Uploaded<int32_t> slots_at_, num_drafts_at_, request_of_slot_at_, masked_begin_at_, masked_ids_at_;

  DeviceBuffer page_table_;  // [requests, page table stride], in the order of the batch
  DeviceBuffer token_ids_, positions_, kv_slots_, row_begin_, kv_begin_, kv_length_, sampling_, acceptance_rates_;
  DeviceBuffer draft_token_ids_, drawn_ids_, num_accepted_, emitted_, last_rows_;
  DeviceBuffer states_;        // float [requests, draft hidden size]
  DeviceBuffer draft_logits_;  // float [requests, draft vocabulary], or of all rows if drafts are drawn
  DeviceArray<float> rates_;
};

}  // namespace eagle31rt
