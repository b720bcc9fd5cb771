// Many threads on one AsyncEngine, for ThreadSanitizer: submissions, cancels, a consumer, readers of stats, functions
// between steps, and a shutdown in the middle. Also checks what can be checked from outside: every request ends, greedy
// requests with the same prompt get the same ids, and all KV pages come back.
//
// usage: tsan_async_engine TARGET DRAFT
#include "eagle31rt/async_engine.h"

#include <algorithm>
#include <atomic>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "eagle31rt/status.h"

namespace {

using namespace eagle31rt;

constexpr int kSubmitters = 3;
constexpr int kRequestsEach = 24;
constexpr int kPrompts = 4;
constexpr int kMaxTokens = 24;

EngineConfig small_engine(const std::string& target, const std::string& draft) {
  EngineConfig config;
  config.model = target;
  config.draft = draft;
  config.num_speculative_tokens = 3;
  config.num_threads = 3;
  config.page_size = 4;
  config.max_model_len = 96;
  config.max_num_seqs = 6;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = 96 << 10;  // too little for all that may run: requests are preempted
  return config;
}

TokenTable letters() {
  TokenTable table;
  for (int id = 0; id < 96; ++id) table.bytes.push_back(std::string(1, static_cast<char>('!' + id % 90)));
  return table;
}

// Prompts share their first three pages.
std::vector<int32_t> prompt(int index) {
  std::vector<int32_t> ids(static_cast<size_t>(13 + 3 * index), 7);
  for (size_t i = 12; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(10 + index);
  return ids;
}

void require(bool condition, const char* what) {
  if (!condition) throw Error(ErrorCode::kInternal, what);
}

struct Seen {
  std::vector<int32_t> ids;
  FinishReason reason = FinishReason::kNone;
};

class Traffic {
 public:
  explicit Traffic(Engine engine) : engine_(std::move(engine)) {}

  void run(bool stop_in_the_middle) {
    std::vector<std::thread> threads;
    for (int submitter = 0; submitter < kSubmitters; ++submitter) {
      threads.emplace_back([this, submitter] { guarded([&] { submit_all(submitter); }); });
    }
    threads.emplace_back([this] { guarded([this] { read_stats(); }); });
    threads.emplace_back([this] { guarded([this] { check_between_steps(); }); });
    std::thread consumer([this] { guarded([this] { consume(); }); });
    if (stop_in_the_middle) {
      while (num_outputs_ < 20 && engine_.is_running()) std::this_thread::yield();
      engine_.shutdown();
    }
    for (std::thread& thread : threads) thread.join();
    if (!stop_in_the_middle) wait_for_the_end();
    engine_.shutdown();
    consumer.join();
    if (!failure_.empty()) throw Error(ErrorCode::kInternal, failure_);
    check(stop_in_the_middle);
  }

 private:
  template <typename Work>
  void guarded(Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
    }
  }

  void submit_all(int submitter) {
    for (int i = 0; i < kRequestsEach; ++i) {
      const int64_t id = submitter * kRequestsEach + i;
      SamplingParams params;
      params.temperature = 0;
      params.ignore_eos = true;
      params.max_tokens = kMaxTokens;
      if (i % 5 == 4) params.stop = {"zz", "no"};
      try {
        engine_.submit(id, prompt(i % kPrompts), params, {.priority = i % 3});
      } catch (const Error& error) {
        if (std::string(error.what()).find("shut down") == std::string::npos) throw;
        return;
      }
      const std::lock_guard lock(mutex_);
      submitted_.push_back(id);
      if (i % 4 == 3 && engine_.cancel(id - submitter % 2)) cancelled_.push_back(id - submitter % 2);
    }
  }

  void read_stats() {
    for (int i = 0; i < 5000; ++i) {
      const EngineStats stats = engine_.stats();
      require(stats.num_used_pages <= stats.num_pages, "more pages used than there are");
      require(i % 100 != 0 || engine_.info().num_threads == 3, "info");
    }
  }

  void check_between_steps() {
    for (int i = 0; i < 50; ++i) {
      try {
        engine_.run_between_steps([](Engine& engine) { engine.check(); });
      } catch (const Error& error) {
        if (std::string(error.what()).find("shut down") == std::string::npos) throw;
      }
    }
  }

  void consume() {
    while (engine_.is_running()) {
      for (const StepOutput& output : engine_.wait_outputs(std::numeric_limits<double>::infinity())) {
        ++num_outputs_;
        const std::lock_guard lock(mutex_);
        Seen& seen = seen_[output.request_id];
        seen.ids.insert(seen.ids.end(), output.new_token_ids.begin(), output.new_token_ids.end());
        seen.reason = output.finish_reason;
      }
    }
  }

  void wait_for_the_end() {
    bool idle = false;
    while (!idle) {
      engine_.run_between_steps([&](Engine& engine) { idle = !engine.has_unfinished_requests(); });
    }
  }

  void check(bool stopped) {
    num_preemptions = engine_.stats().num_preemptions;
    num_cache_hits = engine_.stats().prefix_cache_hits;
    require(engine_.stats().num_used_pages == 0, "pages leaked");
    std::map<int64_t, std::vector<int32_t>> of_prompt;
    for (int64_t id : submitted_) {
      if (std::find(cancelled_.begin(), cancelled_.end(), id) != cancelled_.end()) continue;
      const Seen& seen = seen_[id];
      require(seen.reason != FinishReason::kNone && seen.reason != FinishReason::kError, "a request did not end");
      if (seen.reason != FinishReason::kLength) continue;
      const auto [first, is_new] = of_prompt.emplace(id % kRequestsEach % kPrompts, seen.ids);
      require(is_new || first->second == seen.ids, "one prompt, two answers");
    }
    if (stopped) return;
    require(of_prompt.size() == kPrompts, "not every prompt was answered");
    require(num_preemptions > 0 && num_cache_hits > 0, "nothing was preempted, or nothing came from the prefix cache");
  }

 public:
  int64_t num_preemptions = 0, num_cache_hits = 0;

 private:
  AsyncEngine engine_;
  std::atomic<int> num_outputs_{0};
  std::mutex mutex_;
  std::vector<int64_t> submitted_, cancelled_;
  std::map<int64_t, Seen> seen_;
  std::string failure_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tsan_async_engine TARGET DRAFT\n";
    return 2;
  }
  try {
    for (const bool stop_in_the_middle : {false, true}) {
      Engine engine(small_engine(argv[1], argv[2]));
      engine.set_token_table(letters());
      Traffic traffic(std::move(engine));
      traffic.run(stop_in_the_middle);
      std::cout << "preemptions " << traffic.num_preemptions << ", cached tokens " << traffic.num_cache_hits << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
