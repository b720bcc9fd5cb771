// Accounting of KV pages; target and draft use the same page numbers.
//
//   held      by one request, or by several that share it
//   cached    published in the prefix cache and held by nobody: given away, oldest first, when no page is free
//   free      anything else; the lowest is given first, so that a lightly used pool touches little memory
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "engine/prefix_cache.h"

namespace eagle31rt {

class PagePool {
 public:
  PagePool(int64_t num_pages, int32_t page_size);

  int64_t num_pages() const { return static_cast<int64_t>(num_holders_.size()); }
  int64_t num_cached() const { return cache_.num_unused(); }
  // What allocate() can give: free and cached pages.
  int64_t num_available() const { return static_cast<int64_t>(free_.size()) + num_cached(); }
  int32_t page_size() const { return page_size_; }
  // How often the page was given away: what it holds is new each time.
  uint32_t generation(int32_t page) const { return generations_[static_cast<size_t>(page)]; }
  int64_t pages_for(int64_t num_entries) const { return (num_entries + page_size_ - 1) / page_size_; }
  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }

  // Appends `count` pages. False, and nothing taken, if there are too few.
  bool allocate(int64_t count, std::vector<int32_t>& pages);
  // Another holder of a published page.
  void share(int32_t page);
  void release(int32_t page);
  // All of them, the last one first, so that it is evicted first.
  void release(std::vector<int32_t>& pages);

  // Throws Error(kInternal) if an invariant is broken. num_holders [num_pages]: as the requests see it.
  void check(const std::vector<int32_t>& num_holders) const;

 private:
  int32_t page_size_;
  std::vector<int32_t> num_holders_;
  std::vector<uint32_t> generations_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
  PrefixCache cache_;
};

}  // namespace eagle31rt
