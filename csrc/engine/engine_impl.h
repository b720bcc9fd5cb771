// Inside of Engine: what a step needs. Loading is in load.cpp, the batched step in step.cpp (state on the host) and
// step_on_device.cpp (state on the device), the oracle in step_simple.cpp, the life of requests in engine.cpp.
#pragma once

#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "device/execution_context.h"
#include "eagle31rt/engine.h"
#include "engine/device_runner.h"
#include "engine/page_pool.h"
#include "engine/request_state.h"
#include "engine/row_logprobs.h"
#include "engine/row_processors.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"
#include "model/decoder.h"
#include "model/eagle_draft.h"
#include "spec/drafter.h"

namespace eagle31rt {

// Where an engine runs.
struct Backend {
  std::unique_ptr<Device> owned;  // null: the device outlives every engine
  Device* device;
  const Ops* ops;
};

// The backend that config.device names. Throws Error(kDevice) if it is not there.
Backend open_backend(const EngineConfig& config);

// Engines over devices that tests make.
struct EngineAccess {
  static Engine make(const EngineConfig& config, Backend backend);
};

class Engine::Impl {
 public:
  class Use;  // held by every call that changes the engine

  Impl(const EngineConfig& config, Backend backend);

  void add_request(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
                   const RequestOptions& options);
  void check_request(std::span<const int32_t> prompt, const SamplingParams& params,
                     const RequestOptions& options) const;
  void set_token_table(TokenTable table);
  bool cancel(int64_t request_id);
  bool has_unfinished_requests() const { return !waiting_.empty() || !running_.empty(); }
  std::vector<StepOutput> step();
  std::vector<StepOutput> step_simple();
  void check() const;
  EngineInfo info() const;
  EngineStats stats() const;
  EngineProfile take_profile();

 private:
  using Requests = std::vector<std::unique_ptr<RequestState>>;

  // load.cpp
  void load_models();
  void choose_length(const DecoderConfig& target);
  void make_step_loop();
  void make_pages();
  int64_t available_kv_bytes() const;

  // engine.cpp
  void admit(bool with_drafter);
  void retire_finished();
  void release(RequestState& request);
  void take_slot(RequestState& request);
  void release_slot(RequestState& request);

  // step.cpp
  std::vector<ScheduledRequest> schedule_decode();
  void schedule_prefill(std::vector<ScheduledRequest>& scheduled);
  void propose(std::vector<ScheduledRequest>& scheduled);
  void forward();
  void process_rows();
  void verify();
  std::vector<StepOutput> commit(std::span<ScheduledRequest> scheduled, const int32_t* emitted);
  void observe(const std::vector<int32_t>& computed_before);
  void stop_drafting();

  // step_on_device.cpp
  std::vector<StepOutput> step_on_device();
  std::vector<RequestState*> enter_running();
  std::vector<StepOutput> fail_step(const std::string& reason, const std::unordered_set<const RequestState*>& failed);
  void check_not_lost() const;

  const pid_t process_ = getpid();
  std::atomic<bool> in_use_{false};

  EngineConfig config_;
  VerifyMethod method_;
  std::unique_ptr<Device> owned_device_;
  Device& device_;
  std::string device_name_;
  std::string lost_reason_;  // the device's state is gone; empty while it works
  ThreadPool pool_;
  Profiler profiler_;
  ExecutionContext context_;
  ExecutionContext draft_context_;  // drafting is timed as a whole

  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<EagleDraft> draft_;
  DType weight_dtype_ = DType::kFloat32, kv_dtype_ = DType::kFloat32;
  int32_t max_model_len_ = 0;
  KvStorage target_kv_, draft_kv_;
  std::unique_ptr<PagePool> page_pool_;
  // One of two loops: state on the host, with a drafter if there is a draft, or on the device.
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<DeviceRunner> runner_;
  std::vector<int32_t> free_slots_;

  std::deque<std::unique_ptr<RequestState>> waiting_;
  Requests running_;
  std::unordered_set<int64_t> ids_;
  std::shared_ptr<const TokenTable> token_table_;  // null: no text

  // Buffers of a step.
  StepBatch batch_;
  Proposals proposals_;
  Scratch logits_, captured_;
  UploadBuffer upload_;
  RowProcessors processors_;
  RowLogprobs logprobs_;
  EngineProfile profile_;
};

}  // namespace eagle31rt
