// How a draft follows a request that it did not follow all the time. Its KV lacks entries
//
//   - after drafting was off: steps of such a request do no draft work;
//   - behind a cached prefix that was computed without drafts, or of which the last position's feature is not known.
//
// What is missing is made of the target's features where they are kept (feature_ring.h). Else the target runs the rows
// again, whose KV is there and is not written, if that is worth it. Else the draft does without the beginning.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace eagle31rt {

namespace {

// Rows of a prompt cost about an eighth of a decode step each (135 M weights on two cores), and drafts save a tenth to
// a half of the steps to come: so four steps must be to come for a row that is run again.
bool is_worth_running_again(const RequestState& request, int32_t num_rows) {
  return num_rows <= (request.length_limit - request.length()) / 4;
}

}  // namespace

// Of a cached prefix with all draft entries a draft lacks one thing, the feature of its last position.
void Scheduler::begin_following(RequestState& request, const std::vector<int32_t>& cached) {
  const int32_t num_cached = request.num_computed, page_size = pool_.page_size();
  const int32_t last = std::max(num_cached - 1, 0);
  const auto first_invalid =
      std::ranges::find_if_not(cached, [&](int32_t page) { return pool_.cache().draft_valid(page); });
  // The position whose feature makes the first missing entry.
  const int32_t first_missing = first_invalid == cached.end()
                                    ? last
                                    : std::max(static_cast<int32_t>(first_invalid - cached.begin()) * page_size - 1, 0);
  const int32_t kept_from =
      config_.features == nullptr ? num_cached : config_.features->kept_from(request.pages, num_cached);
  const int32_t behind_invalid = first_draft_entry(cached);  // from here on entries are there
  if (kept_from <= first_missing) {
    request.num_observed = first_missing;
    request.first_draft_entry = 1;
  } else if (first_missing == last ||
             (config_.features != nullptr && is_worth_running_again(request, num_cached - first_missing))) {
    request.num_computed = request.num_observed = first_missing;
    request.first_draft_entry = 1;
  } else if (kept_from + 1 < behind_invalid) {
    request.num_observed = kept_from;
    request.first_draft_entry = kept_from + 1;
  } else {
    request.num_computed = request.num_observed = last;
    request.first_draft_entry = behind_invalid;
  }
  request.drafts_from = request.num_observed;
}

// Behind the last page without draft entries.
int32_t Scheduler::first_draft_entry(const std::vector<int32_t>& cached) const {
  size_t first_page = cached.size();
  while (first_page > 0 && pool_.cache().draft_valid(cached[first_page - 1])) --first_page;
  return std::max(static_cast<int32_t>(first_page) * pool_.page_size(), 1);
}

// Whether the request can draft in this step, after it has caught up. If rows are to be run again it decodes no more.
bool Scheduler::resume_drafting(RequestState& request) {
  if (!request.draft_lags() || config_.features == nullptr) return true;
  const int32_t kept_from = config_.features->kept_from(request.pages, request.num_computed);
  if (kept_from <= request.num_observed) return true;
  if (is_worth_running_again(request, request.num_computed - request.num_observed)) {
    request.first_owned_entry = std::max(request.first_owned_entry, request.num_computed);
    request.num_computed = request.num_observed;
    return false;
  }
  follow_from(request, kept_from);
  return kept_from < request.num_computed;
}

void Scheduler::limit_drafts(int64_t request_id, int32_t max_drafts) {
  const auto found = requests_.find(request_id);
  if (found != requests_.end()) found->second->max_drafts_now = max_drafts;
}

void Scheduler::follow_from(RequestState& request, int32_t position) {
  request.is_drafting = true;
  request.drafts_from = request.num_observed = position;
  request.first_draft_entry = position + 1;
}

void Scheduler::restart_drafting(FeatureRing* features) {
  config_.features = features;
  for (const auto& request : running_) {
    if (request->slot < 0 || request->num_speculative_tokens == 0) continue;
    follow_from(*request, request->num_computed);
    request->num_draft_pages = 0;
  }
}

int32_t Scheduler::first_missing_draft_entry(const RequestState& request) const {
  const int32_t page_size = pool_.page_size();
  int32_t page = (request.num_observed + 1) / page_size;
  while (page < request.num_published && pool_.cache().draft_valid(request.pages[static_cast<size_t>(page)])) ++page;
  return page * page_size;
}

// Pages that were published before the draft had followed.
void Scheduler::publish_draft_entries(RequestState& request) {
  if (!request.is_drafting || request.slot < 0) return;
  const int32_t page_size = pool_.page_size();
  for (int32_t& page = request.num_draft_pages; page < request.num_published; ++page) {
    if ((page + 1) * page_size > request.num_observed + 1) return;
    if (std::max(page * page_size, 1) < request.first_draft_entry) continue;
    pool_.cache().set_draft_valid(request.pages[static_cast<size_t>(page)]);
  }
}

}  // namespace eagle31rt
