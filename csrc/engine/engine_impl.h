// Inside of Engine: what a step needs. Loading is in load.cpp and swap_draft.cpp, who runs in scheduler.cpp, the
// batched step in step.cpp (state on the host) and step_on_device.cpp (state on the device), the oracle in
// step_simple.cpp.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>
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
#include "engine/scheduler.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"
#include "model/decoder.h"
#include "model/eagle_draft.h"
#include "spec/controller.h"
#include "spec/draft_tree_shape.h"
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

// Engines over devices that tests make, and what only tests do to an engine.
struct EngineAccess {
  static Engine make(const EngineConfig& config, Backend backend);
  static void preempt(Engine& engine, int64_t request_id);
  // What the policy would set: RequestState::max_drafts_now.
  static void limit_drafts(Engine& engine, int64_t request_id, int32_t max_drafts);
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
  void preempt(int64_t request_id) { scheduler_->preempt(request_id); }
  void limit_drafts(int64_t request_id, int32_t max_drafts) { scheduler_->limit_drafts(request_id, max_drafts); }
  bool has_unfinished_requests() const { return !scheduler_->empty() || !expired_.empty(); }
  std::vector<StepOutput> step();
  std::vector<StepOutput> step_simple();
  void check() const;
  EngineInfo info() const;
  EngineStats stats() const;
  EngineProfile take_profile();
  void swap_draft(const std::string& directory);

 private:
  int32_t length_limit(std::span<const int32_t> prompt, const SamplingParams& params) const;

  // load.cpp
  void load_models();
  DraftOverrides draft_overrides() const;
  static DraftConfig read_draft_config(const std::string& directory, const DecoderConfig& target,
                                       const DraftOverrides& overrides);
  std::unique_ptr<EagleDraft> load_draft(const std::string& directory, const DraftConfig& config) const;
  void make_step_loop();
  std::unique_ptr<DeviceRunner> make_runner(EagleDraft* draft);
  std::unique_ptr<Drafter> make_drafter(EagleDraft& draft);
  void make_pages();
  void make_scheduler();
  int64_t available_kv_bytes() const;

  // swap_draft.cpp
  void check_overrides_fit(const std::string& directory, const DraftConfig& config) const;

  // step.cpp
  // Null where a step is not timed inside.
  Profiler* profiler_of_passes() { return context_.profiler == nullptr || runner_ ? nullptr : &passes_; }
  void begin_drafting(const RequestState& request);
  void propose(std::vector<ScheduledRequest>& scheduled);
  void forward();
  void process_rows();
  void verify();
  std::vector<StepOutput> commit(std::span<ScheduledRequest> scheduled, const int32_t* emitted);
  int32_t positions_to_observe(const RequestState& request) const;
  void compact_captured(const ScheduledRequest& entry, float* captured) const;
  void observe();
  // catch_up.cpp
  void make_feature_ring();
  bool keeps_features(const RequestState& request) const;
  void catch_up(Schedule& schedule);
  void catch_up(RequestState& request);
  void add_observation(RequestState& request, int32_t first, int32_t end, const float* captured);
  void run_observations();
  void forget_observations();
  void stop_drafting(Schedule& schedule);
  void stop_drafting(std::span<ScheduledRequest> scheduled);
  void expire();
  std::vector<StepOutput> finish_step(std::vector<StepOutput> outputs, std::chrono::steady_clock::time_point start);

  // policy.cpp
  void choose_drafts();
  void collect_outcomes(std::span<const ScheduledRequest> decoded);
  void learn_from_step(std::span<const StepOutput> outputs, double seconds);
  void count_step(double seconds);

  // step_on_device.cpp
  std::vector<StepOutput> step_on_device();
  std::vector<StepOutput> fail_step(const Schedule& schedule, const std::string& reason);
  void check_not_lost() const;

  const pid_t process_ = getpid();
  std::atomic<bool> in_use_{false};

  EngineConfig config_;
  VerifyMethod method_;
  DraftTreeShape tree_shape_;
  std::unique_ptr<Device> owned_device_;
  Device& device_;
  std::string device_name_;
  std::string lost_reason_;  // the device's state is gone; empty while it works
  ThreadPool pool_;
  Profiler profiler_;
  Profiler passes_;  // kOther: all that a step does on the rows of the models
  ExecutionContext context_;
  ExecutionContext draft_context_;  // drafting is timed as a whole

  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<EagleDraft> draft_;
  DType weight_dtype_ = DType::kFloat32, kv_dtype_ = DType::kFloat32;
  int32_t max_model_len_ = 0;
  KvStorage target_kv_, draft_kv_;
  std::unique_ptr<PagePool> page_pool_;
  std::unique_ptr<FeatureRing> features_;  // null without a draft, or if the state is on the device
  // One of two loops: state on the host, with a drafter if there is a draft, or on the device.
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<DeviceRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<StepOutput> expired_;                // ended by a deadline, and not returned yet
  std::shared_ptr<const TokenTable> token_table_;  // null: no text

  // Buffers of a step.
  StepBatch batch_;
  std::vector<int32_t> computed_before_;  // of each request of the batch
  std::vector<Observation> observations_;
  std::vector<RequestState*> observed_;        // the requests of observations_
  std::unordered_set<int32_t> claimed_pages_;  // pages whose draft entries one of observations_ writes
  int32_t num_kept_rows_ = 0;                  // rows of kept_ that observations_ refer to
  std::vector<DraftRequest> draft_requests_;
  Proposals proposals_;
  Scratch logits_, captured_, kept_;
  UploadBuffer upload_;
  RowProcessors processors_;
  RowLogprobs logprobs_;
  EngineProfile profile_;

  // Of a step, in seconds. On a device only the whole is known.
  struct StepTimes {
    double catch_up = 0, propose = 0, verify = 0, sample = 0, observe = 0;
    bool has_prompts = false;
  };
  std::unique_ptr<SpeculationController> controller_;  // null: policy fixed, or nothing to draft
  ChoiceReason reason_ = ChoiceReason::kFixed;
  StepTimes times_;
  std::vector<ControllerRequest> policy_requests_;
  std::vector<RoundOutcome> outcomes_;
  EngineStats totals_;  // those of steps
};

}  // namespace eagle31rt
