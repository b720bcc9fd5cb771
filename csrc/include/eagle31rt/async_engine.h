// An engine with a thread of its own, for programs in which requests come from many threads.
//
//   AsyncEngine engine{Engine(config)};
//   engine.submit(1, prompt_token_ids, params);                    // any thread
//   while (engine.is_running())                                    // one consumer
//     for (const StepOutput& output : engine.wait_outputs(1.0)) use(output);
//
// Nothing here changes a token id: submissions and cancels take effect between steps. As Engine, it is of use in the
// process that made it only; after a fork the child may destroy its copy and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "eagle31rt/engine.h"

namespace eagle31rt {

class AsyncEngine {
 public:
  // Takes over an engine that has no requests. Throws Error(kInvalidArgument) if it has some, Error(kResource) if there
  // is no thread to be had.
  explicit AsyncEngine(Engine engine);
  ~AsyncEngine();  // shutdown(), so on any thread but the engine's
  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // Any thread. Throws what Engine::add_request would, and Error(kInvalidArgument) after shutdown(). A request is in
  // use until the output that ends it has been made. If the engine itself has failed, throws the error that ended it.
  void submit(int64_t request_id, std::span<const int32_t> prompt_token_ids, const SamplingParams& params,
              const RequestOptions& options = {});
  // Any thread. True if the request was there; it yields no further output, and those not yet taken are dropped. Its KV
  // pages are free before the next step.
  bool cancel(int64_t request_id);

  // Outputs in the order of the steps. Blocks until there are some, at most timeout_seconds (0: not at all, infinity:
  // no limit); then, or once the engine has ended and all were taken, the result is empty. One thread at a time; throws
  // Error(kInvalidArgument) for a second one and for a timeout that is negative or no number.
  std::vector<StepOutput> wait_outputs(double timeout_seconds);

  // Any thread, never blocking on a step: values as of the end of the last one.
  EngineInfo info() const;
  EngineStats stats() const;
  // False once no further output can come: the engine was shut down or has failed, and all outputs were taken.
  bool is_running() const;

  // Any thread but the engine's. Runs `function` between two steps and returns when it has run; what it throws is
  // thrown here. It must not step the engine. Throws Error(kInvalidArgument) after shutdown(), or the error of a failed
  // engine.
  void run_between_steps(const std::function<void(Engine&)>& function);

  // Any thread but the engine's, more than once if you like. Finishes the step in progress, ends every request with
  // FinishReason::kAbort (these outputs can still be taken) and joins the thread.
  void shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eagle31rt
