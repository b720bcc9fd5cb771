// One mutex guards what the threads share; the engine itself belongs to its thread, which takes submissions, cancels
// and tasks out of the shared state between steps and never holds the mutex while it works on them.
#include "eagle31rt/async_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace eagle31rt {

namespace {

constexpr double kForever = 1e8;  // seconds; longer waits have no limit
constexpr const char* kShutDown = "the engine has been shut down; make a new one";

// The AsyncEngine whose thread this is. Not its std::thread::id: the system gives ids of ended threads to new ones.
thread_local const void* engine_of_this_thread = nullptr;

struct Submission {
  int64_t request_id;
  std::vector<int32_t> prompt;
  SamplingParams params;
  RequestOptions options;
};

// A caller waits in run_between_steps for `done`.
struct Task {
  const std::function<void(Engine&)>* function;
  std::exception_ptr thrown = nullptr;
  bool done = false;
};

// What the exception in flight means to a caller.
Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResource, "there is no host memory left");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "an exception that is no std::exception");
  }
}

StepOutput last_output(int64_t request_id, FinishReason reason, const std::string& error = {}) {
  StepOutput output;
  output.request_id = request_id;
  output.finish_reason = reason;
  output.error = error;
  return output;
}

}  // namespace

class AsyncEngine::Impl {
 public:
  explicit Impl(Engine engine);

  void submit(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
              const RequestOptions& options);
  bool cancel(int64_t request_id);
  std::vector<StepOutput> wait_outputs(double timeout_seconds);
  EngineInfo info() const;
  EngineStats stats() const;
  bool is_running() const;
  void run_between_steps(const std::function<void(Engine&)>& function);
  void shutdown();
  bool is_ours() const { return process_ == getpid(); }

 private:
  // What other threads want of the engine's. A cancel is of a request that the engine has, so cancels go first.
  struct Orders {
    std::unordered_set<int64_t> cancels;
    std::deque<Task*> tasks;
    std::vector<Submission> submissions;
    bool empty() const { return cancels.empty() && tasks.empty() && submissions.empty(); }
  };

  void check_process() const;
  void check_accepts() const;
  void check_other_thread(const char* what) const;

  // The engine's thread.
  void run();
  bool take_orders(bool has_work);
  void run_first_task();
  void add(const Submission& submission, std::vector<StepOutput>& outputs);
  void publish(std::vector<StepOutput> outputs);
  void abort_requests();
  void end(FinishReason reason, const Error& why);

  const pid_t process_ = getpid();
  Engine engine_;  // its thread's, but for check_request
  Orders taken_;   // its thread's

  mutable std::mutex mutex_;
  std::condition_variable orders_changed_, outputs_changed_, task_done_;
  Orders orders_;
  bool stop_ = false;
  std::unordered_set<int64_t> ids_;  // in use: submitted, not cancelled, last output not yet made
  std::vector<StepOutput> outputs_;  // not yet taken
  bool has_consumer_ = false;
  EngineInfo info_;
  EngineStats stats_;
  std::optional<Error> ended_;  // by what: the error of later calls

  std::mutex join_mutex_;
  std::thread thread_;
};

AsyncEngine::Impl::Impl(Engine engine) : engine_(std::move(engine)), info_(engine_.info()), stats_(engine_.stats()) {
  E31_CHECK(!engine_.has_unfinished_requests(), kInvalidArgument,
            "the engine has requests already; make the AsyncEngine first and submit to it");
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail(ErrorCode::kResource, "the engine's thread could not be started: ", error.what());
  }
}

void AsyncEngine::Impl::check_process() const {
  E31_CHECK(is_ours(), kInvalidArgument,
            "the engine belongs to the process that made it; make one in the child after fork");
}

void AsyncEngine::Impl::check_other_thread(const char* what) const {
  E31_CHECK(engine_of_this_thread != this, kInvalidArgument, what,
            " was called by a function that runs between steps; call it from another thread");
}

// Needs the mutex.
void AsyncEngine::Impl::check_accepts() const {
  if (ended_) throw *ended_;
  E31_CHECK(!stop_, kInvalidArgument, kShutDown);
}

void AsyncEngine::Impl::submit(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
                               const RequestOptions& options) {
  check_process();
  engine_.check_request(prompt, params, options);
  Submission submission{request_id, {prompt.begin(), prompt.end()}, params, options};
  {
    const std::lock_guard lock(mutex_);
    check_accepts();
    E31_CHECK(ids_.count(request_id) == 0, kInvalidArgument, "request_id ", request_id, " is in use");
    orders_.submissions.push_back(std::move(submission));
    ids_.insert(request_id);
  }
  orders_changed_.notify_one();
}

bool AsyncEngine::Impl::cancel(int64_t request_id) {
  check_process();
  std::optional<Submission> dropped;  // destroyed without the mutex: a processor's end is its owner's code
  const std::lock_guard lock(mutex_);
  if (ids_.erase(request_id) == 0) return false;
  std::erase_if(outputs_, [&](const StepOutput& output) { return output.request_id == request_id; });
  auto& submissions = orders_.submissions;
  const auto found = std::find_if(submissions.begin(), submissions.end(),
                                  [&](const Submission& submission) { return submission.request_id == request_id; });
  if (found == submissions.end()) {
    orders_.cancels.insert(request_id);
    orders_changed_.notify_one();
  } else {
    dropped = std::move(*found);
    submissions.erase(found);
  }
  return true;
}

std::vector<StepOutput> AsyncEngine::Impl::wait_outputs(double timeout_seconds) {
  check_process();
  E31_CHECK(timeout_seconds >= 0, kInvalidArgument, "timeout_seconds is ", timeout_seconds, "; give 0 or more");
  std::unique_lock lock(mutex_);
  E31_CHECK(!has_consumer_, kInvalidArgument, "another thread waits for outputs; one at a time may");
  const auto something_happened = [this] { return !outputs_.empty() || ended_.has_value(); };
  has_consumer_ = true;
  if (timeout_seconds > kForever) {
    outputs_changed_.wait(lock, something_happened);
  } else {
    outputs_changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), something_happened);
  }
  has_consumer_ = false;
  return std::exchange(outputs_, {});
}

EngineInfo AsyncEngine::Impl::info() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return info_;
}

EngineStats AsyncEngine::Impl::stats() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool AsyncEngine::Impl::is_running() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return !ended_ || !outputs_.empty();
}

void AsyncEngine::Impl::run_between_steps(const std::function<void(Engine&)>& function) {
  check_process();
  check_other_thread("run_between_steps");
  Task task{.function = &function};
  std::unique_lock lock(mutex_);
  check_accepts();
  orders_.tasks.push_back(&task);
  orders_changed_.notify_one();
  task_done_.wait(lock, [&] { return task.done; });
  lock.unlock();
  if (task.thrown) std::rethrow_exception(task.thrown);
}

void AsyncEngine::Impl::shutdown() {
  check_process();
  check_other_thread("shutdown");
  const std::lock_guard join_lock(join_mutex_);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  orders_changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

// The rest is the engine's thread.

void AsyncEngine::Impl::run() {
  engine_of_this_thread = this;
  try {
    bool has_work = false;
    while (take_orders(has_work)) {
      for (int64_t request_id : taken_.cancels) engine_.cancel(request_id);
      std::vector<StepOutput> outputs;
      for (const Submission& submission : taken_.submissions) add(submission, outputs);
      taken_.submissions.clear();
      while (!taken_.tasks.empty()) run_first_task();
      for (StepOutput& output : engine_.step()) outputs.push_back(std::move(output));
      has_work = engine_.has_unfinished_requests();
      publish(std::move(outputs));
    }
    abort_requests();
    end(FinishReason::kAbort, Error(ErrorCode::kInvalidArgument, kShutDown));
  } catch (...) {
    end(FinishReason::kError, current_error());
  }
}

// Sleeps until there is something to do. False: the end.
bool AsyncEngine::Impl::take_orders(bool has_work) {
  std::unique_lock lock(mutex_);
  orders_changed_.wait(lock, [&] { return stop_ || has_work || !orders_.empty(); });
  if (stop_) return false;
  taken_ = std::exchange(orders_, {});
  return true;
}

void AsyncEngine::Impl::run_first_task() {
  Task& task = *taken_.tasks.front();
  taken_.tasks.pop_front();
  std::optional<EngineInfo> info;
  try {
    (*task.function)(engine_);
    info = engine_.info();
  } catch (...) {
    task.thrown = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    if (info) info_ = std::move(*info);
    task.done = true;  // from here on the caller may destroy it
  }
  task_done_.notify_all();
}

// What check_request can not know, such as a lost device, ends the request.
void AsyncEngine::Impl::add(const Submission& submission, std::vector<StepOutput>& outputs) {
  try {
    engine_.add_request(submission.request_id, submission.prompt, submission.params, submission.options);
  } catch (...) {
    outputs.push_back(last_output(submission.request_id, FinishReason::kError, current_error().what()));
  }
}

void AsyncEngine::Impl::publish(std::vector<StepOutput> outputs) {
  const EngineStats stats = engine_.stats();
  {
    const std::lock_guard lock(mutex_);
    stats_ = stats;
    info_.num_free_pages = stats.num_pages - stats.num_used_pages;
    for (StepOutput& output : outputs) {
      if (orders_.cancels.count(output.request_id) > 0) continue;  // since the step began
      if (output.finish_reason != FinishReason::kNone) ids_.erase(output.request_id);
      outputs_.push_back(std::move(output));
    }
    if (outputs_.empty()) return;
  }
  outputs_changed_.notify_one();
}

void AsyncEngine::Impl::abort_requests() {
  std::unordered_set<int64_t> leaving;
  {
    const std::lock_guard lock(mutex_);
    leaving = ids_;
    leaving.insert(orders_.cancels.begin(), orders_.cancels.end());
  }
  for (int64_t request_id : leaving) engine_.cancel(request_id);
  publish({});
}

void AsyncEngine::Impl::end(FinishReason reason, const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    const std::string message = reason == FinishReason::kError ? why.what() : "";
    for (int64_t request_id : ids_) outputs_.push_back(last_output(request_id, reason, message));
    ids_.clear();
    for (auto* orders : {&taken_, &orders_}) {
      for (Task* task : orders->tasks) {
        task->thrown = std::make_exception_ptr(why);
        task->done = true;
      }
    }
    ended_ = why;
  }
  task_done_.notify_all();
  outputs_changed_.notify_all();
}

AsyncEngine::AsyncEngine(Engine engine) : impl_(std::make_unique<Impl>(std::move(engine))) {}
AsyncEngine::~AsyncEngine() {
  if (impl_->is_ours()) {
    impl_->shutdown();
  } else {
    (void)impl_.release();  // its threads are the parent's, and one of them may have held a mutex
  }
}

void AsyncEngine::submit(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
                         const RequestOptions& options) {
  impl_->submit(request_id, prompt, params, options);
}
bool AsyncEngine::cancel(int64_t request_id) { return impl_->cancel(request_id); }
std::vector<StepOutput> AsyncEngine::wait_outputs(double timeout_seconds) {
  return impl_->wait_outputs(timeout_seconds);
}
EngineInfo AsyncEngine::info() const { return impl_->info(); }
EngineStats AsyncEngine::stats() const { return impl_->stats(); }
bool AsyncEngine::is_running() const { return impl_->is_running(); }
void AsyncEngine::run_between_steps(const std::function<void(Engine&)>& function) {
  impl_->run_between_steps(function);
}
void AsyncEngine::shutdown() { impl_->shutdown(); }

}  // namespace eagle31rt
