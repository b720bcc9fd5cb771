// Who runs in a step, with how many rows and drafts, and in which KV pages.
//
// Requests stand in order of (priority, arrival), waiting and running ones alike. A step
//
//   1 gives running requests the pages of their next row; who comes last is preempted while there are too few
//   2 admits waiting requests while there are slots and pages for all that they must compute
//   3 gives drafts what pages are left
//   4 gives prompts max_num_batched_tokens rows, besides decode and draft rows: speculation cannot starve a new prompt
//
// A request that is preempted waits in its old place and computes its prompt and output anew; its ids are the same. The
// first in order is never preempted and fits alone (Engine::check_request), so the engine always gets on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "eagle31rt/engine.h"
#include "engine/feature_ring.h"
#include "engine/page_pool.h"
#include "engine/request_state.h"
#include "engine/step_batch.h"
#include "spec/draft_tree_shape.h"

namespace eagle31rt {

struct Schedule {
  std::vector<ScheduledRequest> decode;   // one row each and their drafts
  std::vector<ScheduledRequest> prompts;  // chunks of what must be computed before decoding
  std::vector<RequestState*> entered;     // took a slot in this step
  bool empty() const { return decode.empty() && prompts.empty(); }
};

class Scheduler {
 public:
  struct Config {
    int32_t max_num_seqs;
    int32_t max_num_batched_tokens;
    bool has_draft;
    DraftTreeShape tree;
    bool enable_prefix_caching;
    FeatureRing* features;  // null: none are kept
  };
  // What happens outside of the page numbers.
  struct Hooks {
    std::function<void(const RequestState&)> leave;                 // its slot is about to be given up
    std::function<void(int32_t from, int32_t to)> copy_draft_page;  // of the draft's KV
  };
  using Requests = std::vector<std::unique_ptr<RequestState>>;

  Scheduler(const Config& config, PagePool& pool, Hooks hooks);

  void add(std::unique_ptr<RequestState> request);
  bool contains(int64_t request_id) const { return requests_.contains(request_id); }
  bool cancel(int64_t request_id);
  bool empty() const { return running_.empty() && waiting_.empty(); }
  // Sets RequestState::max_drafts_now of a request, if it is there.
  void limit_drafts(int64_t request_id, int32_t max_drafts);
  // Back to the waiting ones, if it runs.
  void preempt(int64_t request_id);

  // Ends the requests whose deadline is over.
  std::vector<StepOutput> expire(std::chrono::steady_clock::time_point now);
  Schedule schedule();
  // The oldest request alone, with all pages that it can ever need and none of the cache; null if there is none.
  RequestState* schedule_alone();
  // The draft is another one, with other features: it has seen nothing of the running requests, and follows them from
  // here on.
  void restart_drafting(FeatureRing* features);
  // The first entry of the draft's KV that the request must write itself when it observes positions from num_observed
  // on: those before are the prefix cache's, and valid.
  int32_t first_missing_draft_entry(const RequestState& request) const;
  // After a step is committed: publishes the pages that it filled, and lets go of finished requests.
  void finish_step();
  // Ends all requests, or the running ones that are named. The outputs say why.
  std::vector<StepOutput> fail_all(const std::string& reason);
  std::vector<StepOutput> fail(const std::unordered_set<const RequestState*>& requests, const std::string& reason);

  const Requests& running() const { return running_; }
  void add_stats(EngineStats& stats) const;
  // Throws Error(kInternal) if an invariant is broken.
  void check() const;

 private:
  using Waiting = std::map<std::pair<int32_t, int64_t>, std::unique_ptr<RequestState>>;  // by order()

  bool grow_running();
  void preempt_last();
  void admit(std::vector<RequestState*>& entered);
  std::vector<int32_t> cached_prefix(const RequestState& request) const;
  bool is_being_computed(const RequestState& request, const std::vector<int32_t>& cached) const;
  bool take_pages(RequestState& request, const std::vector<int32_t>& cached);
  void enter(RequestState& request, const std::vector<int32_t>& cached);
  void begin_following(RequestState& request, const std::vector<int32_t>& cached);
  int32_t first_draft_entry(const std::vector<int32_t>& cached) const;
  bool resume_drafting(RequestState& request);
  void follow_from(RequestState& request, int32_t position);
  void publish_draft_entries(RequestState& request);
  std::vector<ScheduledRequest> schedule_decode();
  std::vector<ScheduledRequest> schedule_prompts();
  int32_t drafts_with_pages(RequestState& request);
  int64_t kv_entries_for(const RequestState& request, int32_t num_drafts) const;
  void return_spare_pages();
  void publish(RequestState& request);
  void publish_page(RequestState& request, int32_t index);
  void wait(std::unique_ptr<RequestState> request);
  void release(RequestState& request);
  void forget(const RequestState& request);
  void retire(RequestState& request);
  void retire_finished();
  void check_running(const RequestState& request) const;

  Config config_;
  PagePool& pool_;
  Hooks hooks_;
  // Any number may wait, so what a step does must not depend on how many: it looks at the running ones, and finds
  // others by order, id or deadline.
  Waiting waiting_;
  Requests running_;                                     // in order
  std::unordered_map<int64_t, RequestState*> requests_;  // all, by id
  std::set<std::pair<std::chrono::steady_clock::time_point, int64_t>>
      deadlines_;  // with the id, of those that have one
  std::vector<int32_t> free_slots_;
  int64_t num_arrivals_ = 0;
  int64_t num_preemptions_ = 0, prefix_cache_queries_ = 0, prefix_cache_hits_ = 0;
};

}  // namespace eagle31rt
