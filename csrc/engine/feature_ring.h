// Target features (captured states) of positions that the draft has not observed, kept by KV page in a bounded number
// of blocks: what a request whose drafting is off needs to draft again, and what a prefix that was computed without
// drafts needs to serve a request that drafts. One block holds the positions of one page; when all blocks are taken,
// the block that was begun first gives way.
//
// Features of a page are those of the tokens that it held since PagePool gave it away last, so what an earlier holder
// left is never found. The bits are those that observe() would have been given: rows are exact, so it does not matter
// which pass computed them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/page_pool.h"

namespace eagle31rt {

class FeatureRing {
 public:
  // captured_size: floats of a position. num_blocks may be 0: then nothing is kept. Memory of a block is taken when it
  // is first used.
  FeatureRing(const PagePool& pool, int64_t num_blocks, int64_t captured_size);

  // captured [count, captured_size]: positions first .. first + count - 1 of the sequence in `pages`. Throws
  // std::bad_alloc; then what was kept of these pages is forgotten or as it was.
  void keep(std::span<const int32_t> pages, int32_t first, int32_t count, const float* captured);
  // The least position such that all from there to `end` - 1 are kept; `end` if the last is not.
  int32_t kept_from(std::span<const int32_t> pages, int32_t end) const;
  // Positions first .. first + count - 1, which are kept, to captured [count, captured_size].
  void copy(std::span<const int32_t> pages, int32_t first, int32_t count, float* captured) const;
  // The page `to` takes over what is kept of `from`, whose content is the same, unless it has as much.
  void move(int32_t from, int32_t to);
  void clear();

 private:
  struct Block {
    int32_t page = -1;
    uint32_t generation = 0;        // of the page
    int32_t begin = 0, end = 0;     // places of the page that are kept
    std::unique_ptr<float[]> data;  // [page_size, captured_size]
  };

  const Block* find(int32_t page) const;
  Block& block_of(int32_t page);

  const PagePool& pool_;
  int64_t captured_size_;
  std::vector<Block> blocks_;
  std::vector<int32_t> block_of_page_;  // [num_pages] a block that may be the page's, or -1
  size_t next_ = 0;                     // the block that gives way
};

}  // namespace eagle31rt
