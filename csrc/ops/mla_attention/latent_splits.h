// Which splits of the latent cache the CPU operator unpacks, in which order: pure functions of its parameters, so that
// a test and a bench can count what it reads.
#pragma once

#include <cstdint>

#include "ops/mla_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt {

// A split that rows of a request see alike but for where they end: unpacked once for all of its rows and heads.
struct LatentSplit {
  int64_t request;
  int64_t start;   // first logical position, a multiple of kAttentionSplit
  int begin, end;  // entries that some row sees, in positions of the split; begin < end
};

// One past the last logical position that rows share. Behind it lie the splits that hold rows of a tree: they are
// gathered row by row, each row's ancestors into their logical positions.
static inline int64_t shared_end(const MlaAttentionParams& p, int64_t request) {
  const int64_t length = p.kv_length[request], rows = p.row_begin[request + 1] - p.row_begin[request];
  return p.ancestor_mask == nullptr ? length + rows : length / kAttentionSplit * kAttentionSplit;
}

static inline int64_t first_split(const MlaAttentionParams& p, int64_t request) {
  return p.kv_begin[request] / kAttentionSplit * kAttentionSplit;
}

// Walks through the shared splits of all requests that have rows, in order.
struct LatentCursor {
  int64_t request = 0;
  int64_t start = -1;  // of the next split, or of the request's first if negative
};

// The next split, or false at the end.
static inline bool next_split(const MlaAttentionParams& p, LatentCursor& cursor, LatentSplit& split) {
  for (; cursor.request < p.num_requests; ++cursor.request, cursor.start = -1) {
    if (p.row_begin[cursor.request] == p.row_begin[cursor.request + 1]) continue;
    if (cursor.start < 0) cursor.start = first_split(p, cursor.request);
    const int64_t rest = shared_end(p, cursor.request) - cursor.start;
    if (rest <= 0) continue;
    const int64_t skipped = p.kv_begin[cursor.request] - cursor.start;
    split = {cursor.request, cursor.start, skipped > 0 ? static_cast<int>(skipped) : 0,
             rest < kAttentionSplit ? static_cast<int>(rest) : kAttentionSplit};
    cursor.start += kAttentionSplit;
    return true;
  }
  return false;
}

// Rows of the same tree that a row sees, itself included.
static inline int64_t num_ancestors(const MlaAttentionParams& p, int64_t row) {
  int64_t count = 0;
  for (int w = 0; w < p.mask_words; ++w) count += __builtin_popcountll(p.ancestor_mask[row * p.mask_words + w]);
  return count;
}

// Entries of the cache that one call reads: those of the shared splits once for each request, whatever its rows and
// heads, and those behind them once for each row of a tree.
static inline int64_t latent_entries_read(const MlaAttentionParams& p) {
  int64_t count = 0;
  LatentCursor cursor;
  for (LatentSplit split{}; next_split(p, cursor, split);) count += split.end - split.begin;
  if (p.ancestor_mask == nullptr) return count;
  for (int64_t request = 0; request < p.num_requests; ++request) {
    const int64_t shared = shared_end(p, request), begin = p.kv_begin[request];
    const int64_t stored = p.kv_length[request] - (begin > shared ? begin : shared);
    for (int64_t row = p.row_begin[request]; row < p.row_begin[request + 1]; ++row) {
      count += stored + num_ancestors(p, row);
    }
  }
  return count;
}

}  // namespace eagle31rt
