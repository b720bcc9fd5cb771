// KV pages that are kept after their request, so that another one with the same beginning need not compute them.
//
// A page is published once the step that wrote it is committed, and only if it is full. It is found by its parent, the
// page before it in the sequence, and by its own token ids, both compared in full: so its whole beginning is equal, and
// no collision of hashes can show one prompt's KV to another. Target and draft use the same page; its draft half may be
// missing (draft_valid).
//
// Whoever holds a page holds its parents too, and lets go of the last page first. So pages that nobody holds are in
// order of eviction when they are in order of time, and a page never goes before its children.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace eagle31rt {

class PrefixCache {
 public:
  static constexpr int32_t kNone = -1;

  PrefixCache(int64_t num_pages, int32_t page_size);

  // The published page with these ids [page_size] behind `parent` (kNone: at the beginning), or kNone.
  int32_t find(int32_t parent, std::span<const int32_t> token_ids) const;
  // The page is held and was not published; nothing is found under its parent and ids.
  void publish(int32_t page, int32_t parent, std::span<const int32_t> token_ids, bool draft_valid);
  bool is_published(int32_t page) const { return node(page).serial != 0; }

  bool draft_valid(int32_t page) const { return node(page).draft_valid; }
  void set_draft_valid(int32_t page) { node(page).draft_valid = true; }
  void clear_draft_valid();

  // Of published pages: the last holder let go; the first one came.
  void set_unused(int32_t page);
  void set_used(int32_t page);
  int64_t num_unused() const { return num_unused_; }
  // Forgets the page that has been unused longest and returns it. Only if there is one.
  int32_t evict();

  // Throws Error(kInternal) if the tree or the order of eviction is broken. num_holders [num_pages].
  void check(std::span<const int32_t> num_holders) const;

 private:
  struct Node {
    uint64_t serial = 0;  // unique for ever; 0: not published
    int32_t parent = kNone;
    int32_t num_children = 0;
    int32_t older = kNone, newer = kNone;  // among unused pages
    bool is_unused = false;
    bool draft_valid = false;
  };

  Node& node(int32_t page) { return nodes_[static_cast<size_t>(page)]; }
  const Node& node(int32_t page) const { return nodes_[static_cast<size_t>(page)]; }
  std::span<const int32_t> token_ids(int32_t page) const;
  uint64_t hash(int32_t parent, std::span<const int32_t> token_ids) const;
  void unlink(int32_t page);

  size_t page_size_;
  std::vector<Node> nodes_;
  std::vector<int32_t> token_ids_;  // [num_pages, page_size]
  std::unordered_multimap<uint64_t, int32_t> page_of_hash_;
  uint64_t last_serial_ = 0;
  int32_t oldest_ = kNone, newest_ = kNone;
  int64_t num_unused_ = 0;
};

}  // namespace eagle31rt
