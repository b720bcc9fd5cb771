#include "device/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"

namespace eagle31rt {

namespace {

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 50 us of spinning: longer than the scalar work between two operators, shorter than a scheduler tick.
constexpr int kSpins = 2000;

}  // namespace

struct alignas(64) ThreadPool::Shared {
  // A job is announced by raising `epoch`; workers take tasks from `next` and report by `pending`.
  alignas(64) std::atomic<uint64_t> epoch{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> pending{0};
  int64_t num_tasks = 0;
  const TaskRef* task = nullptr;
  std::atomic<bool> stop{false};
  std::atomic<int> sleeping{0};
  std::mutex mutex;
  std::condition_variable wake;
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads > 0 ? num_threads : num_physical_cores()) {
  E31_CHECK(num_threads_ <= 1024, kInvalidArgument, "num_threads is ", num_threads_, "; give at most 1024");
  shared_ = std::make_unique<Shared>();
  try {
    for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { worker(thread); });
  } catch (const std::system_error& error) {
    num_threads_ = static_cast<int>(workers_.size()) + 1;  // fewer threads give the same bits
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stop.store(true);
  }
  shared_->wake.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::parallel_for(int64_t num_tasks, TaskRef task) {
  if (num_tasks <= 1 || num_threads_ == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  Shared& shared = *shared_;
  shared.num_tasks = num_tasks;
  shared.task = &task;
  shared.next.store(0, std::memory_order_relaxed);
  shared.pending.store(num_threads_ - 1, std::memory_order_relaxed);
  shared.epoch.fetch_add(1);  // sequentially consistent with the load of `sleeping`: no lost wake-up
  if (shared.sleeping.load() > 0) {
    {
      std::lock_guard<std::mutex> lock(shared.mutex);
    }
    shared.wake.notify_all();
  }
  for (int64_t i; (i = shared.next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) task(i, 0);
  for (int spin = 0; shared.pending.load(std::memory_order_acquire) != 0; ++spin) {
    // A worker may have lost its core to another process: give ours away rather than burn it.
    spin < kSpins ? cpu_relax() : std::this_thread::yield();
  }
}

void ThreadPool::worker(int thread) {
  Shared& shared = *shared_;
  uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && shared.epoch.load(std::memory_order_acquire) == seen; ++spin) cpu_relax();
    if (shared.epoch.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(shared.mutex);
      shared.sleeping.fetch_add(1);
      shared.wake.wait(lock, [&] { return shared.stop.load() || shared.epoch.load() != seen; });
      shared.sleeping.fetch_sub(1);
      if (shared.stop.load()) return;
    }
    ++seen;  // exactly one job can be open: parallel_for waits for every worker
    const TaskRef& task = *shared.task;
    const int64_t num_tasks = shared.num_tasks;
    for (int64_t i; (i = shared.next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) task(i, thread);
    shared.pending.fetch_sub(1, std::memory_order_release);
  }
}

namespace {

// Processors that a container's quota pays for (cgroup v2 "quota period" or "max period"); threads past it would spin
// while others wait to be scheduled.
int cgroup_cpu_quota(int unlimited) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return unlimited;
  return static_cast<int>(std::clamp<int64_t>((quota + period - 1) / period, 1, unlimited));
}

}  // namespace

int num_physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  // Two logical processors of one core share its vector units: count (package, core) pairs.
  std::set<std::pair<std::string, std::string>> cores;
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++logical;
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package, core;
    std::ifstream(base + "physical_package_id") >> package;
    std::ifstream(base + "core_id") >> core;
    cores.emplace(package, core.empty() ? "cpu" + std::to_string(cpu) : core);
  }
  return std::max(1, std::min({logical, static_cast<int>(cores.size()), cgroup_cpu_quota(logical)}));
}

}  // namespace eagle31rt
