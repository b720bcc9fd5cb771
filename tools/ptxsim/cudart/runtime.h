// The state behind the exported functions, and how each of them begins and ends.
#pragma once

#include <driver_types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "device.h"
#include "graph.h"
#include "memory.h"
#include "ptxsim.h"
#include "registry.h"
#include "stream.h"

namespace cudart {

// Orders to fail, for tests of a program's error paths.
class Faults {
 public:
  static Faults from_environment();  // PTXSIM_FAIL_LAUNCH=name:nth, PTXSIM_FAIL_MALLOC=nth

  void fail_launch(std::string name, int nth);
  void fail_malloc(int nth) { malloc_countdown_ = nth; }
  bool launch_fails(const Function& function);
  bool malloc_fails() { return malloc_countdown_ > 0 && --malloc_countdown_ == 0; }

 private:
  std::string launch_name_;
  int launch_countdown_ = 0;
  int malloc_countdown_ = 0;
};

class CounterTable {
 public:
  ptxsim::Counters& of(const std::string& kernel) { return counters_[kernel]; }
  void clear() { counters_.clear(); }
  std::string json(const std::string& name_contains) const;

 private:
  std::map<std::string, ptxsim::Counters> counters_;
};

struct Runtime {
  Runtime();

  std::mutex mutex;                       // held by every call; let go while a host function runs
  const DeviceProfile* device = nullptr;  // null: none
  cudaError_t no_device_error = cudaErrorInsufficientDriver;
  bool eager = false;           // PTXSIM_EAGER
  bool abort_on_error = false;  // PTXSIM_ABORT
  ptxsim::Options options;

  Registry registry;
  MemoryTable memory;
  Streams streams;
  Events events;
  Graphs graphs;
  CounterTable counters;
  Faults faults;
  cudaError_t sticky = cudaSuccess;  // every call returns it until ptxsim_reset_error()
  std::string report;

  // An error that the device does not survive: kept, reported, and all queued work dropped.
  void fail(cudaError_t error, const std::string& message);
  // Says on stderr and in the report why a call is about to return an error.
  void explain(const std::string& message);
  // Runs a function of the program without the lock; nothing else of the device runs meanwhile.
  void run_on_host(void (*function)(void*), void* data);
  void wait_for_host_function();
  void write_counters_file() const;  // PTXSIM_COUNTERS_FILE

 private:
  bool host_function_runs_ = false;
  std::condition_variable host_function_ended_;
};

// Made at the first use, which is before main, and never destroyed: programs unregister their kernels at exit.
Runtime& runtime();

inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local bool in_host_function = false;
inline thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;

inline cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The frame of an exported function: `body` gets the locked runtime of a usable device.
template <class Body>
cudaError_t call(Body body) {
  if (in_host_function) return remember(cudaErrorNotPermitted);
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  if (!state.device) return remember(state.no_device_error);
  if (state.sticky != cudaSuccess) return remember(state.sticky);
  cudaError_t result;
  try {
    result = body(state);
  } catch (const std::bad_alloc&) {
    result = cudaErrorMemoryAllocation;
  }
  return remember(state.sticky != cudaSuccess ? state.sticky : result);
}

// The same for a function of a stream: `body` gets the stream too.
template <class Body>
cudaError_t call(cudaStream_t handle, Body body) {
  return call([&](Runtime& state) {
    const std::shared_ptr<Stream> stream = state.streams.find(handle);
    return stream ? body(state, stream) : cudaErrorInvalidResourceHandle;
  });
}

}  // namespace cudart
