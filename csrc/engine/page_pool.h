// Accounting of KV pages. A page is free or owned by exactly one request; target and draft use the same page numbers.
// The lowest free page is given first, so that a lightly used pool touches little memory.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/check.h"

namespace eagle31rt {

class PagePool {
 public:
  PagePool(int64_t num_pages, int32_t page_size) : num_pages_(num_pages), page_size_(page_size) {
    for (int64_t page = 0; page < num_pages; ++page) free_.push(static_cast<int32_t>(page));
  }

  int64_t num_pages() const { return num_pages_; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t page_size() const { return page_size_; }
  int64_t pages_for(int64_t num_entries) const { return (num_entries + page_size_ - 1) / page_size_; }

  // False, and nothing taken, if there are too few.
  bool allocate(int64_t count, std::vector<int32_t>& pages) {
    if (count > num_free()) return false;
    for (int64_t i = 0; i < count; ++i) {
      pages.push_back(free_.top());
      free_.pop();
    }
    return true;
  }

  void release(std::vector<int32_t>& pages) {
    for (int32_t page : pages) free_.push(page);
    pages.clear();
    E31_INVARIANT(num_free() <= num_pages_);
  }

 private:
  int64_t num_pages_;
  int32_t page_size_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
};

}  // namespace eagle31rt
