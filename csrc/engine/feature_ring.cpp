#include "engine/feature_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace eagle31rt {

FeatureRing::FeatureRing(const PagePool& pool, int64_t num_blocks, int64_t captured_size)
    : pool_(pool),
      captured_size_(captured_size),
      blocks_(static_cast<size_t>(std::min(num_blocks, pool.num_pages()))),
      block_of_page_(static_cast<size_t>(pool.num_pages()), -1) {}

const FeatureRing::Block* FeatureRing::find(int32_t page) const {
  const int32_t index = block_of_page_[static_cast<size_t>(page)];
  if (index < 0) return nullptr;
  const Block& block = blocks_[static_cast<size_t>(index)];
  return block.page == page && block.generation == pool_.generation(page) ? &block : nullptr;
}

FeatureRing::Block& FeatureRing::block_of(int32_t page) {
  if (const Block* found = find(page)) return const_cast<Block&>(*found);
  Block& block = blocks_[next_];
  block.page = -1;  // until its memory is there
  const size_t size = static_cast<size_t>(pool_.page_size() * captured_size_);
  if (!block.data) block.data = std::make_unique_for_overwrite<float[]>(size);
  block.page = page;
  block.generation = pool_.generation(page);
  block.begin = block.end = 0;
  block_of_page_[static_cast<size_t>(page)] = static_cast<int32_t>(next_);
  next_ = (next_ + 1) % blocks_.size();
  return block;
}

void FeatureRing::keep(std::span<const int32_t> pages, int32_t first, int32_t count, const float* captured) {
  if (blocks_.empty()) return;
  const int32_t page_size = pool_.page_size();
  for (int32_t done = 0; done < count;) {
    const int32_t position = first + done, place = position % page_size;
    const int32_t rows = std::min(count - done, page_size - place);
    Block& block = block_of(pages[static_cast<size_t>(position / page_size)]);
    if (place < block.begin || place > block.end) block.begin = block.end = place;  // a gap: begin anew
    std::memcpy(&block.data[static_cast<size_t>(place * captured_size_)], captured + done * captured_size_,
                static_cast<size_t>(rows * captured_size_) * sizeof(float));
    block.end = std::max(block.end, place + rows);
    done += rows;
  }
}

int32_t FeatureRing::kept_from(std::span<const int32_t> pages, int32_t end) const {
  const int32_t page_size = pool_.page_size();
  int32_t from = end;
  while (from > 0) {
    const int32_t index = (from - 1) / page_size;
    const Block* block = find(pages[static_cast<size_t>(index)]);
    if (block == nullptr || index * page_size + block->end < from || block->begin >= block->end) break;
    const int32_t begin = index * page_size + block->begin;
    if (begin >= from) break;
    from = begin;
    if (block->begin > 0) break;
  }
  return from;
}

void FeatureRing::copy(std::span<const int32_t> pages, int32_t first, int32_t count, float* captured) const {
  const int32_t page_size = pool_.page_size();
  for (int32_t done = 0; done < count;) {
    const int32_t position = first + done, place = position % page_size;
    const int32_t rows = std::min(count - done, page_size - place);
    const Block* block = find(pages[static_cast<size_t>(position / page_size)]);
    E31_INVARIANT(block != nullptr && block->begin <= place && place + rows <= block->end);
    std::memcpy(captured + done * captured_size_, &block->data[static_cast<size_t>(place * captured_size_)],
                static_cast<size_t>(rows * captured_size_) * sizeof(float));
    done += rows;
  }
}

void FeatureRing::move(int32_t from, int32_t to) {
  const Block* source = find(from);
  if (source == nullptr) return;
  const Block* other = find(to);
  if (other != nullptr && other->begin <= source->begin && other->end >= source->end) return;
  const int32_t index = std::exchange(block_of_page_[static_cast<size_t>(from)], -1);
  Block& block = blocks_[static_cast<size_t>(index)];
  block.page = to;
  block.generation = pool_.generation(to);
  block_of_page_[static_cast<size_t>(to)] = index;
}

void FeatureRing::clear() { std::ranges::fill(block_of_page_, -1); }

}  // namespace eagle31rt
