#include "spec/eagle_drafter.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace eagle31rt {

namespace {

template <typename Request>
int32_t most_pages_of(std::span<const Request> requests) {
  size_t most = 0;
  for (const Request& request : requests) most = std::max(most, request.pages.size());
  return static_cast<int32_t>(most);
}

}  // namespace

EagleDrafter::EagleDrafter(EagleDraft& draft, KvStorage& kv, int32_t num_slots, int32_t page_size)
    : draft_(draft), kv_(kv), page_size_(page_size), slots_(static_cast<size_t>(num_slots)) {
  for (Slot& each : slots_) each.last_state.resize(static_cast<size_t>(draft.config().hidden_size));
}

void EagleDrafter::copy_row(float* destination, const float* source, int64_t size) {
  std::memcpy(destination, source, static_cast<size_t>(size) * sizeof(float));
}

int32_t EagleDrafter::most_pages(std::span<const DraftRequest> requests) { return most_pages_of(requests); }

void EagleDrafter::begin(int32_t index, int32_t num_observed, int32_t first_visible_entry) {
  E31_INVARIANT(!slot(index).in_use && first_visible_entry >= 1);
  slot(index).in_use = true;
  slot(index).num_observed = num_observed;
  slot(index).first_visible_entry = first_visible_entry;
  slot(index).num_proposed = 0;
}

void EagleDrafter::observe(std::span<const Observation> observations, ExecutionContext& context) {
  if (observations.empty()) return;
  const int64_t hidden = draft_.config().hidden_size;
  const int64_t captured_size = draft_.captured_size();
  batch_.clear(most_pages_of(observations));
  for (const Observation& observation : observations) {
    E31_INVARIANT(slot(observation.slot).in_use);
    E31_INVARIANT(slot(observation.slot).num_observed == observation.first_position);
    batch_.add_request(observation.next_tokens, observation.pages, page_size_, observation.first_position + 1,
                       slot(observation.slot).first_visible_entry, kPositionOffset,
                       {.begin = observation.first_written_entry});
  }
  // Rejected rows lie between the requests' features: close up, so that fc is streamed once for all of them.
  float* captured = captured_.get(batch_.num_rows() * captured_size);
  for (size_t i = 0; i < observations.size(); ++i) {
    const int64_t num_rows = static_cast<int64_t>(observations[i].next_tokens.size());
    copy_row(captured + batch_.row_begin[i] * captured_size, observations[i].captured, num_rows * captured_size);
  }
  float* feature = feature_.get(batch_.num_rows() * hidden);
  draft_.fuse(captured, batch_.num_rows(), feature, context);
  draft_.forward(batch_.view(), feature, kv_, context);
  for (size_t i = 0; i < observations.size(); ++i) {
    Slot& state = slot(observations[i].slot);
    state.num_observed += static_cast<int32_t>(observations[i].next_tokens.size());
    copy_row(state.last_state.data(), feature + (batch_.row_begin[i + 1] - 1) * hidden, hidden);
  }
}

void EagleDrafter::copy_last_states(std::span<const DraftRequest> requests, float* states) {
  const int64_t hidden = draft_.config().hidden_size;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Slot& state = slot(requests[i].slot);
    E31_INVARIANT(state.in_use && state.num_observed > 0 && requests[i].num_tokens > 0 && requests[i].max_depth > 0);
    copy_row(states + static_cast<int64_t>(i) * hidden, state.last_state.data(), hidden);
  }
}

void EagleDrafter::accept(int32_t index, int32_t num_accepted) {
  E31_INVARIANT(num_accepted <= slot(index).num_proposed);
  slot(index).num_proposed = 0;  // observe() overwrites the provisional KV entries from true features
}

void EagleDrafter::release(int32_t index) { slot(index).in_use = false; }

}  // namespace eagle31rt
