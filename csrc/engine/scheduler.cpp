#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "engine/commit.h"

namespace eagle31rt {

namespace {

// Rows a step of prompts that want log-probabilities: each holds a row of logits and a copy of it (at a vocabulary of
// 128k, 128 rows are 130 MB).
constexpr int32_t kMaxPromptLogprobRows = 128;

}  // namespace

Scheduler::Scheduler(const Config& config, PagePool& pool, Hooks hooks)
    : config_(config), pool_(pool), hooks_(std::move(hooks)) {
  for (int32_t slot = config.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::add(std::unique_ptr<RequestState> request) {
  request->arrival = num_arrivals_++;
  requests_.emplace(request->id, request.get());
  if (request->timeout_seconds > 0) deadlines_.emplace(request->deadline, request->id);
  wait(std::move(request));
}

void Scheduler::wait(std::unique_ptr<RequestState> request) {
  const auto order = request->order();
  waiting_.emplace(order, std::move(request));
}

Schedule Scheduler::schedule() {
  Schedule schedule;
  for (const auto& request : running_) {
    if (request->slot >= 0) continue;  // else step_simple() began it: it goes on without drafts
    request->slot = free_slots_.back();
    free_slots_.pop_back();
    schedule.entered.push_back(request.get());
  }
  const bool enough_pages = grow_running();
  if (enough_pages) admit(schedule.entered);
  schedule.decode = schedule_decode();
  schedule.prompts = schedule_prompts();
  return schedule;
}

// Pages for the next row of every running request. False if somebody had to be preempted for it.
bool Scheduler::grow_running() {
  bool enough_pages = true;
  if (!config_.tree.is_chain()) return_spare_pages();
  for (size_t i = 0; i < running_.size(); ++i) {
    RequestState& request = *running_[i];
    const int64_t missing = pool_.pages_for(request.kv_entries_for(0)) - static_cast<int64_t>(request.pages.size());
    while (i < running_.size() && missing > 0 && !pool_.allocate(missing, request.pages)) {
      preempt_last();  // possibly this one
      enough_pages = false;
    }
  }
  return enough_pages;
}

// Those that only the drafts of the last step needed. Of a tree that can be many.
void Scheduler::return_spare_pages() {
  for (const auto& request : running_) {
    std::vector<int32_t>& pages = request->pages;
    while (std::ssize(pages) > pool_.pages_for(request->kv_entries_for(0))) {
      pool_.release(pages.back());
      pages.pop_back();
    }
  }
}

void Scheduler::preempt_last() {
  std::unique_ptr<RequestState> request = std::move(running_.back());
  running_.pop_back();
  release(*request);
  num_preemptions_ += 1;
  wait(std::move(request));
}

void Scheduler::preempt(int64_t request_id) {
  const auto found = std::ranges::find_if(running_, [&](const auto& each) { return each->id == request_id; });
  if (found == running_.end()) return;
  std::rotate(found, found + 1, running_.end());
  preempt_last();
}

// In order, so that nobody who needs many pages is passed by others for ever. Only who waits for a page that is being
// computed is passed: that takes a few steps.
void Scheduler::admit(std::vector<RequestState*>& entered) {
  int32_t num_considered = 0;
  for (auto place = waiting_.begin(); place != waiting_.end();) {
    if (static_cast<int32_t>(running_.size()) >= config_.max_num_seqs) return;
    if (num_considered++ >= config_.max_num_seqs) return;  // bounds the work of a step when many wait for one prompt
    RequestState& request = *place->second;
    const std::vector<int32_t> cached = cached_prefix(request);
    if (is_being_computed(request, cached)) {
      ++place;
      continue;
    }
    if (!take_pages(request, cached)) return;
    enter(request, cached);
    entered.push_back(&request);
    const auto behind =
        std::ranges::upper_bound(running_, request.order(), {}, [](const auto& r) { return r->order(); });
    running_.insert(behind, std::move(place->second));
    place = waiting_.erase(place);
  }
}

// Published pages of its beginning. One token at least is left to compute: its row yields the next one.
std::vector<int32_t> Scheduler::cached_prefix(const RequestState& request) const {
  std::vector<int32_t> pages;
  // Log-probabilities of a prompt need all of its rows.
  if (!config_.enable_prefix_caching || request.wants_prompt_logprobs()) return pages;
  const auto page_size = static_cast<size_t>(pool_.page_size());
  const size_t num_pages = (request.tokens.size() - 1) / page_size;
  int32_t parent = PrefixCache::kNone;
  while (pages.size() < num_pages) {
    parent = pool_.cache().find(parent, std::span(request.tokens).subspan(pages.size() * page_size, page_size));
    if (parent == PrefixCache::kNone) break;
    pages.push_back(parent);
  }
  return pages;
}

// A request before it in order is about to publish the page that comes next: equal prompts that arrive together are
// computed once. It does not wait for one behind it, which others between them may keep waiting.
bool Scheduler::is_being_computed(const RequestState& request, const std::vector<int32_t>& cached) const {
  const auto begin = static_cast<int64_t>(cached.size()) * pool_.page_size(), end = begin + pool_.page_size();
  if (!config_.enable_prefix_caching || request.wants_prompt_logprobs() || end > request.length() - 1) return false;
  return std::ranges::any_of(running_, [&](const auto& other) {
    if (other->order() > request.order()) return false;
    if (other->num_published != static_cast<int32_t>(cached.size())) return false;
    if (end > other->num_computed + other->num_prefill_rows() || other->num_prefill_rows() == 0) return false;
    if (!cached.empty() && other->pages[cached.size() - 1] != cached.back()) return false;
    return std::equal(other->tokens.begin() + begin, other->tokens.begin() + end, request.tokens.begin() + begin);
  });
}

bool Scheduler::take_pages(RequestState& request, const std::vector<int32_t>& cached) {
  request.is_drafting = config_.has_draft && request.num_speculative_tokens > 0;
  for (int32_t page : cached) pool_.share(page);
  request.pages = cached;
  const int64_t num_new = pool_.pages_for(request.kv_entries_for(0)) - static_cast<int64_t>(cached.size());
  if (pool_.allocate(num_new, request.pages)) return true;
  pool_.release(request.pages);
  request.is_drafting = false;
  return false;
}

void Scheduler::enter(RequestState& request, const std::vector<int32_t>& cached) {
  const int32_t num_cached = static_cast<int32_t>(cached.size()) * pool_.page_size();
  request.first_owned_entry = num_cached;
  request.num_published = static_cast<int32_t>(cached.size());
  request.num_computed = num_cached;
  if (request.is_drafting) begin_following(request, cached);
  request.slot = free_slots_.back();
  free_slots_.pop_back();
  if (std::exchange(request.was_admitted, true)) return;
  request.num_cached_tokens = num_cached;
  request.first_run_at = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (!config_.enable_prefix_caching) return;
  prefix_cache_queries_ += request.prompt_length;
  prefix_cache_hits_ += num_cached;
}

std::vector<ScheduledRequest> Scheduler::schedule_decode() {
  std::vector<ScheduledRequest> scheduled;
  scheduled.reserve(running_.size());
  for (const auto& request : running_) {
    if (!request->decoding()) continue;
    const bool drafts_wanted = request->can_draft() && request->num_draft_tokens_wanted() > 0;
    const bool can_draft = drafts_wanted && resume_drafting(*request);
    if (!request->decoding()) continue;  // it runs rows again
    const int32_t drafts = can_draft ? drafts_with_pages(*request) : 0;
    scheduled.push_back({.request = request.get(), .num_rows = 1 + drafts, .num_drafts = drafts});
  }
  return scheduled;
}

// Takes pages for the drafts that it wants, and returns for how many there were some.
int32_t Scheduler::drafts_with_pages(RequestState& request) {
  const bool is_chain = config_.tree.is_chain();
  int32_t drafts = std::max(is_chain ? request.num_draft_tokens_wanted() : request.num_tree_drafts_wanted(), 0);
  const auto missing = [&] {
    return pool_.pages_for(kv_entries_for(request, drafts)) - static_cast<int64_t>(request.pages.size());
  };
  while (drafts > 0 && missing() > pool_.num_available()) --drafts;
  if (missing() > 0) pool_.allocate(missing(), request.pages);
  return drafts;
}

// A tree may have more drafts than can be emitted: its rows and those of the draft, which both follow the newest token,
// take entries that no token will ever have.
int64_t Scheduler::kv_entries_for(const RequestState& request, int32_t num_drafts) const {
  if (config_.tree.is_chain() || num_drafts == 0) return request.kv_entries_for(num_drafts);
  const int64_t rows = request.length() + std::max(num_drafts, config_.tree.num_fed(num_drafts));
  return std::max<int64_t>(rows, request.kv_entries_for(std::min(num_drafts, config_.tree.depth)));
}

std::vector<ScheduledRequest> Scheduler::schedule_prompts() {
  std::vector<ScheduledRequest> scheduled;
  int32_t budget = config_.max_num_batched_tokens, logprob_budget = kMaxPromptLogprobRows;
  for (const auto& request : running_) {
    const int32_t remaining = request->num_prefill_rows();
    int32_t rows = std::min(remaining, budget);
    if (request->wants_prompt_logprobs()) {
      rows = std::min(rows, logprob_budget);
      logprob_budget -= rows;
    }
    if (rows == 0) continue;
    const bool yields_token = rows == remaining && request->num_output_tokens() == 0;
    scheduled.push_back({.request = request.get(), .num_rows = rows, .needs_logits = yields_token});
    budget -= rows;
  }
  return scheduled;
}

RequestState* Scheduler::schedule_alone() {
  if (running_.empty() && !waiting_.empty()) {
    const auto first = waiting_.begin();
    RequestState& request = *first->second;
    // Nobody else holds any, and check_request() saw that it fits.
    E31_INVARIANT(pool_.allocate(pool_.pages_for(request.max_kv_entries()), request.pages));
    running_.push_back(std::move(first->second));
    waiting_.erase(first);
  }
  return running_.empty() ? nullptr : running_.front().get();
}

void Scheduler::finish_step() {
  if (config_.enable_prefix_caching) {
    for (const auto& request : running_) {
      publish(*request);
      publish_draft_entries(*request);
    }
  }
  retire_finished();
}

void Scheduler::publish(RequestState& request) {
  const int32_t num_full = request.num_shareable_entries() / pool_.page_size();
  if (request.slot < 0) return;  // the oracle leaves nothing behind
  while (request.num_published < num_full) publish_page(request, request.num_published++);
}

// If the page has been published by another request it has the same bits: that one is taken, and the own one is free.
void Scheduler::publish_page(RequestState& request, int32_t index) {
  PrefixCache& cache = pool_.cache();
  int32_t& page = request.pages[static_cast<size_t>(index)];
  const int32_t parent = index == 0 ? PrefixCache::kNone : request.pages[static_cast<size_t>(index - 1)];
  const auto page_size = static_cast<size_t>(pool_.page_size());
  const auto token_ids = std::span(request.tokens).subspan(static_cast<size_t>(index) * page_size, page_size);
  const bool draft_valid = request.is_drafting && std::max(index * pool_.page_size(), 1) >= request.first_draft_entry &&
                           (index + 1) * pool_.page_size() <= request.num_observed + 1;
  const int32_t published = cache.find(parent, token_ids);
  if (published == PrefixCache::kNone) return cache.publish(page, parent, token_ids, draft_valid);
  if (draft_valid && !cache.draft_valid(published)) {
    hooks_.copy_draft_page(page, published);  // nobody reads it yet: its holders draft without it
    cache.set_draft_valid(published);
  }
  if (config_.features != nullptr) config_.features->move(page, published);
  pool_.share(published);
  pool_.release(std::exchange(page, published));
}

void Scheduler::add_stats(EngineStats& stats) const {
  stats.num_running = static_cast<int64_t>(running_.size());
  stats.num_waiting = static_cast<int64_t>(waiting_.size());
  stats.num_preemptions = num_preemptions_;
  stats.num_pages = pool_.num_pages();
  stats.num_used_pages = pool_.num_pages() - pool_.num_available();
  stats.num_cached_pages = pool_.num_cached();
  stats.prefix_cache_queries = prefix_cache_queries_;
  stats.prefix_cache_hits = prefix_cache_hits_;
}

}  // namespace eagle31rt
