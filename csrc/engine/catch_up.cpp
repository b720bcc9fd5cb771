// Lets the draft follow requests, now or later: see lazy_drafting.cpp for what is missing when.
#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

namespace {

// Of a pass over kept features: bounds its memory, and is enough rows for the draft's weights to be read once.
constexpr int32_t kMaxCatchUpRows = 512;
// The ring takes this share of the target's KV cache if nothing is said.
constexpr int64_t kFeaturesShareOfKv = 8;

}  // namespace

void Engine::Impl::make_feature_ring() {
  features_.reset();
  if (!drafter_) return;
  const int64_t block_bytes = decoder_->captured_size() * config_.page_size * static_cast<int64_t>(sizeof(float));
  int64_t bytes = config_.kept_features_memory_bytes;
  if (bytes < 0) {
    const int64_t page_bytes = decoder_->kv_shape(kv_dtype_).bytes_per_token() * config_.page_size;
    bytes = page_pool_->num_pages() * page_bytes / kFeaturesShareOfKv;
  }
  features_ = std::make_unique<FeatureRing>(*page_pool_, bytes / block_bytes, decoder_->captured_size());
}

// A request that never drafts leaves its features to those that share its prefix.
bool Engine::Impl::keeps_features(const RequestState& request) const {
  return features_ && request.slot >= 0 && (request.is_drafting || config_.enable_prefix_caching);
}

void Engine::Impl::add_observation(RequestState& request, int32_t first, int32_t end, const float* captured) {
  int32_t first_written = scheduler_->first_missing_draft_entry(request);
  const int32_t page_size = config_.page_size, num_pages = static_cast<int32_t>(request.pages.size());
  const auto page_of = [&](int32_t entry) { return request.pages[static_cast<size_t>(entry / page_size)]; };
  while (first_written < num_pages * page_size && claimed_pages_.contains(page_of(first_written))) {
    first_written = (first_written / page_size + 1) * page_size;
  }
  for (int32_t entry = first_written; entry <= std::min(end, num_pages * page_size - 1); entry += page_size) {
    claimed_pages_.insert(page_of(entry));
  }
  observations_.push_back(
      {.slot = request.slot,
       .pages = request.pages,
       .first_position = first,
       .captured = captured,
       .next_tokens = {&request.tokens[static_cast<size_t>(first + 1)], static_cast<size_t>(end - first)},
       .first_written_entry = first_written});
  observed_.push_back(&request);
}

void Engine::Impl::run_observations() {
  if (observations_.empty()) return;
  const ScopedTimer timer(context_.profiler, Work::kDraft);
  drafter_->observe(observations_, draft_context_);
  for (size_t i = 0; i < observations_.size(); ++i) {
    observed_[i]->num_observed += static_cast<int32_t>(observations_[i].next_tokens.size());
  }
  forget_observations();
}

void Engine::Impl::forget_observations() {
  observations_.clear();
  observed_.clear();
  claimed_pages_.clear();
  num_kept_rows_ = 0;
}

// From kept features, all of which are there. The last rows of several requests share a pass.
void Engine::Impl::catch_up(RequestState& request) {
  const int64_t captured_size = decoder_->captured_size();
  float* kept = kept_.get(kMaxCatchUpRows * captured_size);
  for (int32_t first = request.num_observed; first < request.num_computed;) {
    if (num_kept_rows_ == kMaxCatchUpRows) run_observations();
    const int32_t num_rows = std::min(request.num_computed - first, kMaxCatchUpRows - num_kept_rows_);
    float* captured = kept + num_kept_rows_ * captured_size;
    features_->copy(request.pages, first, num_rows, captured);
    add_observation(request, first, first + num_rows, captured);
    num_kept_rows_ += num_rows;
    first += num_rows;
    if (first < request.num_computed) run_observations();
  }
}

// Before a step drafts. Requests that were given another place to begin from begin anew.
void Engine::Impl::catch_up(Schedule& schedule) {
  if (!drafter_) return;
  const auto follow = [&](ScheduledRequest& entry) {
    RequestState& request = *entry.request;
    if (!request.is_drafting) return;
    if (drafter_->num_observed(request.slot) != request.num_observed) {
      drafter_->release(request.slot);
      begin_drafting(request);
    }
    if (!request.draft_lags() || request.max_drafts_now == 0) return;
    const bool is_needed = entry.num_drafts > 0 || request.num_prefill_rows() > 0;
    if (is_needed && features_->kept_from(request.pages, request.num_computed) <= request.num_observed) {
      catch_up(request);
    }
  };
  try {
    std::ranges::for_each(schedule.decode, follow);
    std::ranges::for_each(schedule.prompts, follow);
    run_observations();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResource) throw;
    stop_drafting(schedule);
  } catch (const std::bad_alloc&) {
    stop_drafting(schedule);
  }
}

// Nothing was proposed yet.
void Engine::Impl::stop_drafting(Schedule& schedule) {
  for (ScheduledRequest& entry : schedule.decode) {
    entry.num_rows -= entry.num_drafts;
    entry.num_drafts = 0;
  }
  stop_drafting(schedule.decode);
  stop_drafting(schedule.prompts);
}

// Without memory to follow its requests the draft leaves them: they go on as plain decoding does, with the same ids.
void Engine::Impl::stop_drafting(std::span<ScheduledRequest> scheduled) {
  forget_observations();
  for (const ScheduledRequest& entry : scheduled) {
    RequestState& request = *entry.request;
    if (std::exchange(request.is_drafting, false)) drafter_->release(request.slot);
  }
}

}  // namespace eagle31rt
