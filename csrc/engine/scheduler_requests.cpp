// How requests leave the scheduler, and its invariants.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/scheduler.h"

namespace eagle31rt {

void Scheduler::release(RequestState& request) {
  pool_.release(request.pages);
  if (request.slot >= 0) {
    hooks_.leave(request);
    free_slots_.push_back(std::exchange(request.slot, -1));
  }
  request.forget_computed();
}

void Scheduler::forget(const RequestState& request) {
  requests_.erase(request.id);
  deadlines_.erase({request.deadline, request.id});
}

void Scheduler::retire_finished() {
  for (const auto& request : running_) {
    if (!request->finished()) continue;
    release(*request);
    forget(*request);
  }
  std::erase_if(running_, [](const auto& request) { return request->finished(); });
}

// One that has finished, wherever it is.
void Scheduler::retire(RequestState& request) {
  const auto waiting = waiting_.find(request.order());
  if (waiting == waiting_.end()) return retire_finished();
  forget(request);
  waiting_.erase(waiting);
}

bool Scheduler::cancel(int64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return false;
  found->second->finish_reason = FinishReason::kAbort;
  retire(*found->second);
  return true;
}

std::vector<StepOutput> Scheduler::expire(std::chrono::steady_clock::time_point now) {
  std::vector<StepOutput> outputs;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    RequestState& request = *requests_.at(deadlines_.begin()->second);
    commit_error(request, concat("the deadline of the request, timeout_seconds ", request.timeout_seconds, ", is over"),
                 outputs.emplace_back());
    request.finish_reason = outputs.back().finish_reason = FinishReason::kAbort;
    retire(request);
  }
  return outputs;
}

std::vector<StepOutput> Scheduler::fail(const std::unordered_set<const RequestState*>& requests,
                                        const std::string& reason) {
  std::vector<StepOutput> outputs;
  for (const auto& request : running_) {
    if (requests.contains(request.get())) commit_error(*request, reason, outputs.emplace_back());
  }
  retire_finished();
  return outputs;
}

std::vector<StepOutput> Scheduler::fail_all(const std::string& reason) {
  std::vector<StepOutput> outputs;
  for (const auto& request : running_) commit_error(*request, reason, outputs.emplace_back());
  for (const auto& [order, request] : waiting_) commit_error(*request, reason, outputs.emplace_back());
  retire_finished();
  waiting_.clear();
  requests_.clear();
  deadlines_.clear();
  return outputs;
}

void Scheduler::check_running(const RequestState& request) const {
  const int32_t page_size = pool_.page_size();
  E31_INVARIANT(!request.finished());
  E31_INVARIANT(request.num_computed < request.length() && request.length() < request.length_limit);
  E31_INVARIANT(request.num_prefill_rows() > 0 || request.decoding());
  const int64_t most_entries =
      std::max<int64_t>(request.max_kv_entries(), kv_entries_for(request, request.num_speculative_tokens));
  E31_INVARIANT(static_cast<int64_t>(request.pages.size()) <= pool_.pages_for(most_entries));
  E31_INVARIANT(static_cast<int64_t>(request.pages.size()) >= pool_.pages_for(request.num_computed));
  E31_INVARIANT(request.slot >= 0 || !request.is_drafting);
  if (request.slot < 0) return;
  E31_INVARIANT(request.first_owned_entry < request.length());
  if (request.is_drafting) {
    E31_INVARIANT(request.drafts_from <= request.num_observed && request.num_observed <= request.num_computed);
  }
  if (!config_.enable_prefix_caching) E31_INVARIANT(request.num_published == 0);
  const PrefixCache& cache = pool_.cache();
  for (int32_t i = 0; i < static_cast<int32_t>(request.pages.size()); ++i) {
    const int32_t page = request.pages[static_cast<size_t>(i)];
    E31_INVARIANT(cache.is_published(page) == (i < request.num_published));
    if (i >= request.num_published) continue;
    const int32_t parent = i == 0 ? PrefixCache::kNone : request.pages[static_cast<size_t>(i - 1)];
    const auto ids =
        std::span(request.tokens).subspan(static_cast<size_t>(i * page_size), static_cast<size_t>(page_size));
    E31_INVARIANT(cache.find(parent, ids) == page);
    const bool has_entries = (i + 1) * page_size > 1;  // entry 0 holds nothing
    const bool is_visible = request.is_drafting && std::max(i * page_size, 1) >= request.first_draft_entry &&
                            (i + 1) * page_size <= request.num_observed + 1;
    if (has_entries && is_visible) E31_INVARIANT(cache.draft_valid(page));
  }
}

void Scheduler::check() const {
  std::vector<int32_t> num_holders(static_cast<size_t>(pool_.num_pages()), 0);
  std::vector<bool> is_taken(static_cast<size_t>(config_.max_num_seqs), false);
  size_t num_with_deadline = 0;
  const auto take = [&](int32_t slot) {
    E31_INVARIANT(!is_taken[static_cast<size_t>(slot)]);
    is_taken[static_cast<size_t>(slot)] = true;
  };
  const auto check_known = [&](const RequestState& request) {
    E31_INVARIANT(requests_.at(request.id) == &request);
    if (request.timeout_seconds == 0) return;
    E31_INVARIANT(deadlines_.contains({request.deadline, request.id}));
    num_with_deadline += 1;
  };
  for (const auto& request : running_) {
    check_running(*request);
    check_known(*request);
    for (int32_t page : request->pages) num_holders[static_cast<size_t>(page)] += 1;
    if (request->slot >= 0) take(request->slot);
  }
  for (const auto& [order, request] : waiting_) {
    E31_INVARIANT(order == request->order());
    check_known(*request);
    E31_INVARIANT(request->pages.empty() && request->slot < 0 && !request->is_drafting && request->num_computed == 0);
  }
  for (int32_t slot : free_slots_) take(slot);
  E31_INVARIANT(std::ranges::is_sorted(running_, {}, [](const auto& request) { return request->order(); }));
  E31_INVARIANT(requests_.size() == running_.size() + waiting_.size());
  E31_INVARIANT(num_with_deadline == deadlines_.size());
  pool_.check(num_holders);
}

}  // namespace eagle31rt
