#include "spec/tree_drafter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

int32_t words_for(int32_t num_bits) { return (num_bits + 63) / 64; }

}  // namespace

void TreeDrafter::start(std::span<const DraftRequest> requests, Proposals& proposals) {
  trees_.resize(std::max(trees_.size(), requests.size()));
  proposals.row_begin.assign(1, 0);
  mask_words_ = 1;
  num_rows_ = static_cast<int64_t>(requests.size());
  copy_last_states(requests, states_.get(num_rows_ * draft_.config().hidden_size));
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    Tree& tree = trees_[i];
    tree.num_tokens = request.num_tokens;
    tree.depth = std::min(shape_.depth, request.max_depth);
    tree.first_row = proposals.row_begin.back();
    tree.candidates.clear();
    tree.masks.clear();
    tree.draft_ids.assign(draw_ ? static_cast<size_t>(tree.num_tokens) : 0, -1);
    tree.num_fed = 0;
    tree.level.assign(1, {.candidate = -1, .row = static_cast<int32_t>(i), .entry = -1});
    mask_words_ = std::max(mask_words_, words_for(shape_.num_fed(tree.num_tokens)));
    slot(request.slot).num_proposed = tree.depth;
    proposals.row_begin.push_back(tree.first_row + tree.num_tokens + 1);
  }
  proposals.draft_vocab_size = draft_.config().draft_vocab_size;
  proposals.logits = draw_ ? laws_.get(proposals.row_begin.back() * proposals.draft_vocab_size) : nullptr;
}

// Runs the draft over the nodes of the level, with the states that predicted them. False if there are none.
bool TreeDrafter::feed(std::span<const DraftRequest> requests, int32_t level, ExecutionContext& context) {
  const int64_t hidden = draft_.config().hidden_size;
  num_rows_ = 0;
  for (size_t i = 0; i < requests.size(); ++i) num_rows_ += std::ssize(trees_[i].level);
  if (num_rows_ == 0) return false;
  float* next = next_states_.get(num_rows_ * hidden);
  batch_.clear(most_pages(requests), mask_words_);
  for (size_t i = 0; i < requests.size(); ++i) {
    Tree& tree = trees_[i];
    if (tree.level.empty()) continue;
    const int64_t first_row = batch_.num_rows();
    for (size_t n = 0; n < tree.level.size(); ++n) {
      copy_row(next + (first_row + static_cast<int64_t>(n)) * hidden, states_.data() + tree.level[n].row * hidden,
               hidden);
    }
    feed_tree(requests[i], tree, level);
  }
  draft_.forward(batch_.view(), next, kv_, context);
  std::swap(states_, next_states_);
  return true;
}

void TreeDrafter::feed_tree(const DraftRequest& request, Tree& tree, int32_t level) {
  const int32_t first_entry = tree.num_fed;
  const auto words = static_cast<size_t>(mask_words_);
  auto row = static_cast<int32_t>(batch_.num_rows());
  fed_.clear();
  depths_.assign(tree.level.size(), level - 1);
  for (Growing& node : tree.level) {
    fed_.push_back(tree.candidates[static_cast<size_t>(node.candidate)].token_id);
    const size_t mask = tree.masks.size();
    tree.masks.resize(mask + words, 0);
    if (node.entry >= 0) std::copy_n(&tree.masks[static_cast<size_t>(node.entry) * words], words, &tree.masks[mask]);
    node.entry = tree.num_fed++;
    node.row = row++;
    tree.masks[mask + static_cast<size_t>(node.entry) / 64] |= uint64_t{1} << (node.entry % 64);
  }
  const Slot& state = slot(request.slot);
  batch_.add_tree({.token_ids = fed_,
                   .depths = depths_,
                   .ancestor_mask = &tree.masks[static_cast<size_t>(first_entry) * words],
                   .mask_words = mask_words_,
                   .first_row = first_entry},
                  request.pages, page_size_, state.num_observed + 1, state.first_visible_entry, kPositionOffset);
}

void TreeDrafter::rank_tokens(const float* logits, ExecutionContext& context) {
  const int64_t vocab_size = draft_.config().draft_vocab_size;
  const std::vector<int32_t>& draft_to_target = draft_.weights().draft_to_target;
  const auto size = static_cast<size_t>(num_rows_ * shape_.top_k);
  top_ids_.resize(size);
  top_values_.resize(size);
  top_logprobs_.resize(size);
  context.ops.top_k({.logits = logits,
                     .draft_to_target = draft_to_target.empty() ? nullptr : draft_to_target.data(),
                     .values = top_values_.data(),
                     .token_ids = top_ids_.data(),
                     .log_probabilities = top_logprobs_.data(),
                     .num_rows = num_rows_,
                     .vocab_size = vocab_size,
                     .logits_stride = vocab_size,
                     .k = shape_.top_k},
                    context);
}

// Keeps the laws of the level, and draws from them.
void TreeDrafter::draw_tokens(std::span<const DraftRequest> requests, int32_t level, const float* logits,
                              ExecutionContext& context) {
  const int64_t vocab_size = draft_.config().draft_vocab_size;
  for (const Tree& tree : std::span(trees_).first(requests.size())) {
    for (const Growing& node : tree.level) {
      copy_row(laws_.data() + (tree.first_row + node.candidate + 1) * vocab_size, logits + node.row * vocab_size,
               vocab_size);
    }
  }
  for (size_t place = 0; place < shape_.places.size(); ++place) {
    if (shape_.places[place].depth == level + 1) draw_place(requests, place, logits, context);
  }
}

void TreeDrafter::draw_place(std::span<const DraftRequest> requests, size_t place, const float* logits,
                             ExecutionContext& context) {
  const int64_t vocab_size = draft_.config().draft_vocab_size;
  const int32_t parent = shape_.places[place].parent;
  float* place_logits = place_logits_.get(static_cast<int64_t>(requests.size()) * vocab_size);
  sampling_.clear();
  drawing_.clear();
  masked_begin_.assign(1, 0);
  masked_ids_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    Tree& tree = trees_[i];
    const auto node = std::ranges::find(tree.level, parent, &Growing::candidate);
    if (node == tree.level.end() || static_cast<int32_t>(place) >= tree.num_tokens) continue;
    copy_row(place_logits + std::ssize(drawing_) * vocab_size, logits + node->row * vocab_size, vocab_size);
    for (size_t sibling = 0; sibling < place; ++sibling) {
      if (shape_.places[sibling].parent == parent) masked_ids_.push_back(tree.draft_ids[sibling]);
    }
    masked_begin_.push_back(static_cast<int32_t>(masked_ids_.size()));
    sampling_.push_back({.temperature = requests[i].temperature,
                         .top_k = 0,
                         .top_p = 1.0f,
                         .min_p = 0.0f,
                         .seed = requests[i].seed,
                         .position = requests[i].first_position + shape_.places[place].depth - 1});
    drawing_.push_back(&tree);
  }
  if (drawing_.empty()) return;
  drawn_ids_.resize(drawing_.size());
  context.ops.sample({.logits = place_logits,
                      .rows = sampling_.data(),
                      .masked_begin = masked_begin_.data(),
                      .masked_ids = masked_ids_.data(),
                      .token_ids = drawn_ids_.data(),
                      .num_rows = std::ssize(drawing_),
                      .vocab_size = vocab_size,
                      .logits_stride = vocab_size,
                      .purpose = NoisePurpose::kDraft,
                      .noise_index = static_cast<uint32_t>(place)},
                     context);
  for (size_t i = 0; i < drawing_.size(); ++i) drawing_[i]->draft_ids[place] = drawn_ids_[i];
}

// Children of the nodes of the level; the best of them are the next one.
void TreeDrafter::grow_by_score(Tree& tree, int32_t level) const {
  const size_t first = tree.candidates.size();
  std::vector<Growing> children;
  for (const Growing& node : tree.level) {
    const float score = node.candidate < 0 ? 0.0f : tree.candidates[static_cast<size_t>(node.candidate)].score;
    const size_t ranked = static_cast<size_t>(node.row) * static_cast<size_t>(shape_.top_k);
    for (size_t rank = ranked; rank < ranked + static_cast<size_t>(shape_.top_k) && top_ids_[rank] >= 0; ++rank) {
      children.push_back({static_cast<int32_t>(tree.candidates.size()), node.row, node.entry});
      tree.candidates.push_back({score + top_logprobs_[rank], node.candidate, top_ids_[rank]});
    }
  }
  std::stable_sort(children.begin(), children.end(), [&](const Growing& a, const Growing& b) {
    return tree.candidates[static_cast<size_t>(a.candidate)].score >
           tree.candidates[static_cast<size_t>(b.candidate)].score;
  });
  const int32_t num_expanded = level + 1 < tree.depth ? shape_.num_expanded(level + 1, tree.num_tokens) : 0;
  children.resize(std::min(children.size(), static_cast<size_t>(num_expanded)));
  tree.level = std::move(children);
}

// The places of the next depth; candidate i is place i, and its score only keeps the order.
void TreeDrafter::grow_by_place(Tree& tree, int32_t level) const {
  const auto places = std::span(shape_.places).first(static_cast<size_t>(tree.num_tokens));
  std::vector<Growing> children;
  size_t parent = 0;  // in tree.level, whose places ascend
  const auto is_last = [&](int32_t place) {
    return std::ranges::none_of(places, [&](const auto& other) { return other.parent == place; });
  };
  for (size_t i = tree.candidates.size(); i < places.size() && places[i].depth == level + 1; ++i) {
    const DraftTreeShape::Place& place = places[i];
    while (parent < tree.level.size() && tree.level[parent].candidate < place.parent) ++parent;
    Candidate child{kNever, place.parent, -1};
    if (parent < tree.level.size() && tree.level[parent].candidate == place.parent) {
      const Growing& node = tree.level[parent];
      if (!draw_) {
        child.token_id = top_ids_[static_cast<size_t>(node.row * shape_.top_k + place.rank)];
      } else if (tree.draft_ids[i] >= 0) {
        child.token_id = draft_.target_id(tree.draft_ids[i]);
      }
      const auto index = static_cast<int32_t>(i);
      if (child.token_id >= 0) {
        child.score = -static_cast<float>(index);
        if (level + 1 < tree.depth && !is_last(index)) children.push_back({index, node.row, node.entry});
      }
    }
    tree.candidates.push_back(child);
  }
  tree.level = std::move(children);
}

void TreeDrafter::build(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) {
  std::vector<float> scores;
  std::vector<int32_t> parents, token_ids, candidate_begin{0}, candidates, roots(requests.size(), -1);
  int32_t most_rows = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const Candidate& candidate : trees_[i].candidates) {
      scores.push_back(candidate.score);
      parents.push_back(candidate.parent);
      token_ids.push_back(candidate.token_id);
    }
    candidate_begin.push_back(static_cast<int32_t>(scores.size()));
    most_rows = std::max(most_rows, requests[i].num_tokens + 1);
  }
  const auto num_rows = static_cast<size_t>(proposals.row_begin.back());
  proposals.mask_words = words_for(most_rows);
  proposals.num_drafts.resize(requests.size());
  proposals.ancestor_mask.resize(num_rows * static_cast<size_t>(proposals.mask_words));
  for (auto* column : {&proposals.token_ids, &proposals.parents, &proposals.first_child, &proposals.next_sibling,
                       &proposals.depths, &candidates}) {
    column->resize(num_rows);
  }
  context.ops.build_tree({.scores = scores.data(),
                          .parents = parents.data(),
                          .token_ids = token_ids.data(),
                          .candidate_begin = candidate_begin.data(),
                          .root_token_ids = roots.data(),
                          .row_begin = proposals.row_begin.data(),
                          .num_nodes = proposals.num_drafts.data(),
                          .row_token_ids = proposals.token_ids.data(),
                          .row_candidates = candidates.data(),
                          .row_parents = proposals.parents.data(),
                          .first_child = proposals.first_child.data(),
                          .next_sibling = proposals.next_sibling.data(),
                          .depths = proposals.depths.data(),
                          .ancestor_mask = proposals.ancestor_mask.data(),
                          .num_requests = static_cast<int64_t>(requests.size()),
                          .mask_words = proposals.mask_words,
                          .order = TreeOrder::kByScore},
                         context);
  if (draw_) move_laws(proposals, candidates);
}

// From where their place had them to their rows, which come no later.
void TreeDrafter::move_laws(const Proposals& proposals, std::span<const int32_t> candidates) {
  for (size_t i = 0; i + 1 < proposals.row_begin.size(); ++i) {
    const int32_t first_row = proposals.row_begin[i];
    for (int32_t row = 1; row <= proposals.num_drafts[i]; ++row) {
      const int32_t kept_at = candidates[static_cast<size_t>(first_row + row)] + 1;
      if (kept_at == row) continue;
      copy_row(laws_.data() + (first_row + row) * proposals.draft_vocab_size,
               laws_.data() + (first_row + kept_at) * proposals.draft_vocab_size, proposals.draft_vocab_size);
    }
  }
}

void TreeDrafter::propose(std::span<const DraftRequest> requests, Proposals& proposals, ExecutionContext& context) {
  start(requests, proposals);
  const int64_t vocab_size = proposals.draft_vocab_size;
  for (int32_t level = 0; level == 0 || feed(requests, level, context); ++level) {
    float* logits = logits_.get(num_rows_ * vocab_size);
    draft_.head(states_.data(), num_rows_, logits, vocab_size, context);
    draw_ ? draw_tokens(requests, level, logits, context) : rank_tokens(logits, context);
    for (size_t i = 0; i < requests.size(); ++i) {
      shape_.is_static() ? grow_by_place(trees_[i], level) : grow_by_score(trees_[i], level);
    }
  }
  build(requests, proposals, context);
}

}  // namespace eagle31rt
