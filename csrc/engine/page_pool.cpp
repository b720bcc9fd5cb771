#include "engine/page_pool.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace eagle31rt {

PagePool::PagePool(int64_t num_pages, int32_t page_size)
    : page_size_(page_size),
      num_holders_(static_cast<size_t>(num_pages), 0),
      generations_(static_cast<size_t>(num_pages), 0),
      cache_(num_pages, page_size) {
  std::vector<int32_t> all(static_cast<size_t>(num_pages));
  std::iota(all.begin(), all.end(), 0);
  free_ = decltype(free_)(std::greater<>(), std::move(all));
}

bool PagePool::allocate(int64_t count, std::vector<int32_t>& pages) {
  if (count > num_available()) return false;
  for (int64_t i = 0; i < count; ++i) {
    int32_t page;
    if (free_.empty()) {
      page = cache_.evict();
    } else {
      page = free_.top();
      free_.pop();
    }
    num_holders_[static_cast<size_t>(page)] = 1;
    generations_[static_cast<size_t>(page)] += 1;
    pages.push_back(page);
  }
  return true;
}

void PagePool::share(int32_t page) {
  E31_INVARIANT(cache_.is_published(page));
  if (num_holders_[static_cast<size_t>(page)]++ == 0) cache_.set_used(page);
}

void PagePool::release(int32_t page) {
  int32_t& holders = num_holders_[static_cast<size_t>(page)];
  E31_INVARIANT(holders > 0);
  if (--holders > 0) return;
  if (cache_.is_published(page)) {
    cache_.set_unused(page);
  } else {
    free_.push(page);
  }
}

void PagePool::release(std::vector<int32_t>& pages) {
  for (size_t i = pages.size(); i > 0; --i) release(pages[i - 1]);
  pages.clear();
}

void PagePool::check(const std::vector<int32_t>& num_holders) const {
  E31_INVARIANT(num_holders == num_holders_);
  const auto num_held = std::ranges::count_if(num_holders_, [](int32_t holders) { return holders > 0; });
  E31_INVARIANT(num_held + num_available() == num_pages());
  cache_.check(num_holders_);
}

}  // namespace eagle31rt
