// What every operator call needs besides its parameters: where to run, and where to count time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "device/cpu/thread_pool.h"

namespace eagle31rt {

class Device;
struct Ops;  // the operator table of one backend (ops/ops.h)

// Wall time by kind of work, for the breakdown that bench/decode.py prints. Null profiler = no clock is read.
enum class Work { kLinear, kAttention, kLogits, kDraft, kOther, kCount };

struct Profiler {
  std::array<int64_t, static_cast<size_t>(Work::kCount)> nanoseconds{};
};

struct ExecutionContext {
  ThreadPool& pool;
  const Ops& ops;
  Profiler* profiler = nullptr;
  Device* device = nullptr;  // null: the operators run here, on `pool`
};

// Adds the time between construction and destruction to `work`.
class ScopedTimer {
 public:
  ScopedTimer(Profiler* profiler, Work work) : profiler_(profiler), work_(work) {
    if (profiler_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~ScopedTimer() {
    if (profiler_ == nullptr) return;
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    profiler_->nanoseconds[static_cast<size_t>(work_)] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Profiler* profiler_;
  Work work_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace eagle31rt
