// A pool whose parallel_for costs well under a microsecond between bursts: a decode step of a small model makes about
// 150 calls, so a futex wake per call (5-50 us) would cost more than the arithmetic. Workers spin for a short while
// after each call and sleep only when none follows.
//
// Row-exactness: work may be split over outputs only, never over a reduction, so that which thread runs a task can not
// change a bit of the result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace eagle31rt {

// A non-owning reference to a callable void(int64_t task, int thread); costs one indirect call.
class TaskRef {
 public:
  template <typename Callable>
  TaskRef(Callable& callable)  // NOLINT: implicit by design
      : object_(&callable),
        invoke_([](void* object, int64_t task, int thread) { (*static_cast<Callable*>(object))(task, thread); }) {}
  void operator()(int64_t task, int thread) const { invoke_(object_, task, thread); }

 private:
  void* object_;
  void (*invoke_)(void*, int64_t, int);
};

class ThreadPool {
 public:
  // num_threads 0: one per physical core that this process may run on. The calling thread is thread 0.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs task(i, thread) for i in [0, num_tasks), in any order, on any thread; returns when all have ended.
  // Tasks must not throw. One caller at a time; not reentrant.
  void parallel_for(int64_t num_tasks, TaskRef task);

 private:
  struct Shared;
  void worker(int thread);
  int num_threads_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> workers_;
};

// Physical cores this process may run on (affinity, SMT siblings and a cgroup quota taken into account), at least 1.
int num_physical_cores();

}  // namespace eagle31rt
