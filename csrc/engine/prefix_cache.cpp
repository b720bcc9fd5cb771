#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace eagle31rt {

PrefixCache::PrefixCache(int64_t num_pages, int32_t page_size)
    : page_size_(static_cast<size_t>(page_size)),
      nodes_(static_cast<size_t>(num_pages)),
      token_ids_(nodes_.size() * page_size_) {}

std::span<const int32_t> PrefixCache::token_ids(int32_t page) const {
  return std::span(token_ids_).subspan(static_cast<size_t>(page) * page_size_, page_size_);
}

// The parent by its serial number: its page may hold something else later.
uint64_t PrefixCache::hash(int32_t parent, std::span<const int32_t> ids) const {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: spreads every bit upwards
  uint64_t value = parent == kNone ? 0 : node(parent).serial;
  for (int32_t id : ids) {
    value = (value ^ static_cast<uint32_t>(id)) * kMultiplier;
    value ^= value >> 32;
  }
  return value;
}

int32_t PrefixCache::find(int32_t parent, std::span<const int32_t> ids) const {
  const auto [begin, end] = page_of_hash_.equal_range(hash(parent, ids));
  for (auto entry = begin; entry != end; ++entry) {
    const int32_t page = entry->second;
    if (node(page).parent == parent && std::ranges::equal(token_ids(page), ids)) return page;
  }
  return kNone;
}

void PrefixCache::publish(int32_t page, int32_t parent, std::span<const int32_t> ids, bool draft_valid) {
  E31_INVARIANT(!is_published(page) && ids.size() == page_size_ && (parent == kNone || is_published(parent)));
  page_of_hash_.emplace(hash(parent, ids), page);
  node(page) = {.serial = ++last_serial_, .parent = parent, .draft_valid = draft_valid};
  std::ranges::copy(ids, token_ids_.begin() + static_cast<int64_t>(page) * static_cast<int64_t>(page_size_));
  if (parent != kNone) node(parent).num_children += 1;
}

void PrefixCache::clear_draft_valid() {
  for (Node& each : nodes_) each.draft_valid = false;
}

void PrefixCache::set_unused(int32_t page) {
  Node& it = node(page);
  E31_INVARIANT(it.serial != 0 && !it.is_unused);
  it.is_unused = true;
  it.older = newest_;
  it.newer = kNone;
  (newest_ == kNone ? oldest_ : node(newest_).newer) = page;
  newest_ = page;
  num_unused_ += 1;
}

void PrefixCache::set_used(int32_t page) {
  E31_INVARIANT(node(page).is_unused);
  unlink(page);
}

void PrefixCache::unlink(int32_t page) {
  Node& it = node(page);
  (it.older == kNone ? oldest_ : node(it.older).newer) = it.newer;
  (it.newer == kNone ? newest_ : node(it.newer).older) = it.older;
  it.is_unused = false;
  num_unused_ -= 1;
}

int32_t PrefixCache::evict() {
  const int32_t page = oldest_;
  E31_INVARIANT(page != kNone && node(page).num_children == 0);
  unlink(page);
  const int32_t parent = node(page).parent;
  const auto [begin, end] = page_of_hash_.equal_range(hash(parent, token_ids(page)));
  page_of_hash_.erase(std::find_if(begin, end, [page](const auto& entry) { return entry.second == page; }));
  if (parent != kNone) node(parent).num_children -= 1;
  node(page) = {};
  return page;
}

void PrefixCache::check(std::span<const int32_t> num_holders) const {
  std::vector<int32_t> num_children(nodes_.size(), 0);
  size_t num_published = 0;
  for (size_t page = 0; page < nodes_.size(); ++page) {
    const Node& it = nodes_[page];
    if (it.serial == 0) continue;
    num_published += 1;
    E31_INVARIANT(it.is_unused == (num_holders[page] == 0));
    E31_INVARIANT(find(it.parent, token_ids(static_cast<int32_t>(page))) == static_cast<int32_t>(page));
    if (it.parent == kNone) continue;
    const auto parent = static_cast<size_t>(it.parent);
    num_children[parent] += 1;
    E31_INVARIANT(nodes_[parent].serial != 0 && nodes_[parent].serial < it.serial);
    E31_INVARIANT(num_holders[parent] >= (num_holders[page] > 0));
  }
  for (size_t page = 0; page < nodes_.size(); ++page) E31_INVARIANT(nodes_[page].num_children == num_children[page]);
  E31_INVARIANT(num_published == page_of_hash_.size());
  int64_t num_unused = 0;
  for (int32_t page = oldest_; page != kNone; page = node(page).newer) {
    E31_INVARIANT(node(page).is_unused && num_children[static_cast<size_t>(page)] == 0);  // its children went before
    if (node(page).parent != kNone) num_children[static_cast<size_t>(node(page).parent)] -= 1;
    num_unused += 1;
  }
  E31_INVARIANT(num_unused == num_unused_);
}

}  // namespace eagle31rt
