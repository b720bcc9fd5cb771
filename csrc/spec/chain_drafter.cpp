#include "spec/chain_drafter.h"

#include <algorithm>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

void ChainDrafter::choose_tokens(std::span<const DraftRequest> requests, int32_t step, const float* logits,
                                 ExecutionContext& context) {
  rows_.clear();
  for (size_t index : active_) {
    const DraftRequest& request = requests[index];
    rows_.push_back({.temperature = draw_ ? request.temperature : 0.0f,
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

// Returns the number of steps.
int32_t ChainDrafter::start(std::span<const DraftRequest> requests, Proposals& proposals) {
  int32_t num_steps = 0;
  proposals.row_begin.assign(1, 0);
  proposals.num_drafts.clear();
  for (const DraftRequest& request : requests) {
    E31_INVARIANT(request.num_tokens <= request.max_depth);
    slot(request.slot).num_proposed = request.num_tokens;
    proposals.num_drafts.push_back(request.num_tokens);
    proposals.row_begin.push_back(proposals.row_begin.back() + request.num_tokens + 1);
    num_steps = std::max(num_steps, request.num_tokens);
  }
  proposals.token_ids.assign(static_cast<size_t>(proposals.row_begin.back()), -1);
  proposals.mask_words = 0;
  proposals.draft_vocab_size = draft_.config().draft_vocab_size;
  proposals.logits = draw_ ? law_.get(proposals.row_begin.back() * proposals.draft_vocab_size) : nullptr;
  copy_last_states(requests, states_.get(static_cast<int64_t>(requests.size()) * draft_.config().hidden_size));
  active_.clear();
  for (size_t i = 0; i < requests.size(); ++i) active_.push_back(i);
  return num_steps;
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
    const auto previous = static_cast<size_t>(proposals.first_row(index) + step);
    batch_.add_request({&proposals.token_ids[previous], 1}, request.pages, page_size_,
                       slot(request.slot).num_observed + step, slot(request.slot).first_visible_entry, kPositionOffset);
    active_[remaining++] = index;
  }
  active_.resize(remaining);
  draft_.forward(batch_.view(), states, kv_, context);
}

void ChainDrafter::propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) {
  const int32_t num_steps = start(requests, proposals);
  const int64_t draft_vocab = proposals.draft_vocab_size;
  for (int32_t step = 0; step < num_steps; ++step) {
    if (step > 0) advance(requests, proposals, step, context);
    const int64_t num_active = static_cast<int64_t>(active_.size());
    float* logits = logits_.get(num_active * draft_vocab);
    draft_.head(states_.data(), num_active, logits, draft_vocab, context);
    choose_tokens(requests, step, logits, context);
    for (size_t row = 0; row < active_.size(); ++row) {
      const int32_t parent = proposals.first_row(active_[row]) + step;
      // A head without a finite logit proposes draft id 0, which verification judges like any other.
      proposals.token_ids[static_cast<size_t>(parent) + 1] = draft_.target_id(std::max(draft_ids_[row], 0));
      if (proposals.logits != nullptr) {
        copy_row(law_.data() + parent * draft_vocab, logits + static_cast<int64_t>(row) * draft_vocab, draft_vocab);
      }
    }
  }
}

}  // namespace eagle31rt
