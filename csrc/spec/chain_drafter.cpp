#include "spec/chain_drafter.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// The pair (feature p, token p + 1) is KV entry p + 1; entry 0 is never written and never visible.
constexpr int32_t kPositionOffset = -1;

void copy_row(float* destination, const float* source, int64_t size) {
  std::memcpy(destination, source, static_cast<size_t>(size) * sizeof(float));
}

template <typename Request>
int32_t most_pages(std::span<const Request> requests) {
  size_t most = 0;
  for (const Request& request : requests) most = std::max(most, request.pages.size());
  return static_cast<int32_t>(most);
}

}  // namespace

ChainDrafter::ChainDrafter(EagleDraft& draft, KvStorage& kv, const Config& config)
    : draft_(draft), kv_(kv), config_(config), slots_(static_cast<size_t>(config.num_slots)) {
  for (Slot& each : slots_) each.last_state.resize(static_cast<size_t>(draft.config().hidden_size));
}

void ChainDrafter::begin(int32_t index, int32_t num_observed, int32_t first_visible_entry) {
  E31_INVARIANT(!slot(index).in_use && first_visible_entry >= 1);
  slot(index).in_use = true;
  slot(index).num_observed = num_observed;
  slot(index).first_visible_entry = first_visible_entry;
  slot(index).num_proposed = 0;
}

void ChainDrafter::observe(std::span<const Observation> observations, ExecutionContext& context) {
  if (observations.empty()) return;
  const int64_t hidden = draft_.config().hidden_size;
  const int64_t captured_size = draft_.captured_size();
  batch_.clear(most_pages(observations));
  for (const Observation& observation : observations) {
    E31_INVARIANT(slot(observation.slot).in_use);
    E31_INVARIANT(slot(observation.slot).num_observed == observation.first_position);
    batch_.add_request(observation.next_tokens, observation.pages, config_.page_size, observation.first_position + 1,
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

void ChainDrafter::choose_tokens(std::span<const DraftRequest> requests, int32_t step, const float* logits,
                                 ExecutionContext& context) {
  rows_.clear();
  for (size_t index : active_) {
    const DraftRequest& request = requests[index];
    rows_.push_back({.temperature = config_.draw ? request.temperature : 0.0f,
                     .top_k = 0,
                     .top_p = 1.0f,
                     .min_p = 0.0f,
                     .seed = request.seed,
                     .position = request.first_position + step});
  }
  draft_ids_.resize(active_.size());
  const int64_t draft_vocab = draft_.config().draft_vocab_size;
  context.ops.sample({.logits = logits,
                      .rows = rows_.data(),
                      .masked_begin = nullptr,
                      .masked_ids = nullptr,
                      .token_ids = draft_ids_.data(),
                      .num_rows = static_cast<int64_t>(active_.size()),
                      .vocab_size = draft_vocab,
                      .logits_stride = draft_vocab,
                      .purpose = NoisePurpose::kDraft,
                      .noise_index = static_cast<uint32_t>(step)},
                     context);
}

void ChainDrafter::start(std::span<const DraftRequest> requests, Proposals& proposals) {
  proposals.max_tokens = 0;
  for (const DraftRequest& request : requests) {
    E31_INVARIANT(slot(request.slot).in_use && slot(request.slot).num_observed > 0 && request.num_tokens > 0);
    slot(request.slot).num_proposed = request.num_tokens;
    proposals.max_tokens = std::max(proposals.max_tokens, request.num_tokens);
  }
  proposals.token_ids.assign(requests.size() * static_cast<size_t>(proposals.max_tokens), -1);
  proposals.draft_vocab_size = draft_.config().draft_vocab_size;
  proposals.logits = nullptr;
  if (config_.draw) {
    proposals.logits = law_.get(static_cast<int64_t>(proposals.token_ids.size()) * proposals.draft_vocab_size);
  }
  const int64_t hidden = draft_.config().hidden_size;
  float* states = states_.get(static_cast<int64_t>(requests.size()) * hidden);
  active_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    active_.push_back(i);
    copy_row(states + static_cast<int64_t>(i) * hidden, slot(requests[i].slot).last_state.data(), hidden);
  }
}

// Feeds the previous token of every request that wants another one back, with the state that predicted it.
void ChainDrafter::advance(std::span<const DraftRequest> requests, const Proposals& proposals, int32_t step,
                           ExecutionContext& context) {
  const int64_t hidden = draft_.config().hidden_size;
  float* states = states_.data();
  size_t remaining = 0;
  batch_.clear(most_pages(requests));
  for (size_t row = 0; row < active_.size(); ++row) {
    const size_t index = active_[row];
    const DraftRequest& request = requests[index];
    if (request.num_tokens <= step) continue;
    if (remaining != row) {
      copy_row(states + static_cast<int64_t>(remaining) * hidden, states + static_cast<int64_t>(row) * hidden, hidden);
    }
    const size_t previous = index * static_cast<size_t>(proposals.max_tokens) + static_cast<size_t>(step - 1);
    batch_.add_request({&proposals.token_ids[previous], 1}, request.pages, config_.page_size,
                       slot(request.slot).num_observed + step, slot(request.slot).first_visible_entry, kPositionOffset);
    active_[remaining++] = index;
  }
  active_.resize(remaining);
  draft_.forward(batch_.view(), states, kv_, context);
}

void ChainDrafter::propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) {
  start(requests, proposals);
  const int64_t draft_vocab = proposals.draft_vocab_size;
  for (int32_t step = 0; step < proposals.max_tokens; ++step) {
    if (step > 0) advance(requests, proposals, step, context);
    const int64_t num_active = static_cast<int64_t>(active_.size());
    float* logits = logits_.get(num_active * draft_vocab);
    draft_.head(states_.data(), num_active, logits, draft_vocab, context);
    choose_tokens(requests, step, logits, context);
    for (size_t row = 0; row < active_.size(); ++row) {
      const size_t entry = active_[row] * static_cast<size_t>(proposals.max_tokens) + static_cast<size_t>(step);
      // A head without a finite logit proposes draft id 0, which verification judges like any other.
      proposals.token_ids[entry] = draft_.target_id(std::max(draft_ids_[row], 0));
      if (proposals.logits != nullptr) {
        copy_row(law_.data() + static_cast<int64_t>(entry) * draft_vocab,
                 logits + static_cast<int64_t>(row) * draft_vocab, draft_vocab);
      }
    }
  }
}

void ChainDrafter::accept(int32_t index, int32_t num_accepted) {
  E31_INVARIANT(num_accepted <= slot(index).num_proposed);
  slot(index).num_proposed = 0;  // observe() overwrites the provisional KV entries from true features
}

void ChainDrafter::release(int32_t index) { slot(index).in_use = false; }

}  // namespace eagle31rt
