// One work item of attention: a KV head and a few rows of one request. The splits are unpacked one after the other into
// a tile that all rows and all heads of the group share; register blocks of queries (row, head) then compute on it.
#pragma once

#include "ops/paged_attention/attend_queries.h"
#include "ops/paged_attention/kv_source.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

struct CacheFunctions {
  void (*unpack_split)(const KvHead&, int64_t start, int first, int end, KvTile&);
  void (*gather_entries)(const KvHead&, const int64_t* index, int first, int count, KvTile&);
};

template <typename Cache>
constexpr CacheFunctions kCacheFunctions = {unpack_split<Cache>, gather_entries<Cache>};

const CacheFunctions& cache_functions(DType dtype) {
  if (dtype == DType::kFloat32) return kCacheFunctions<StoredFloat32>;
  return dtype == DType::kBFloat16 ? kCacheFunctions<StoredBFloat16> : kCacheFunctions<StoredFloat16>;
}

// What one thread needs for one item. Static per thread: too large for a stack of unknown size.
struct Workspace : QueryState<query_stride(kMaxHeadDim)> {
  KvTile tile;
};

thread_local Workspace workspace;

// Rows row_begin .. row_end - 1 of request i (packed row numbers) and query heads head_begin .. head_end - 1.
struct Item {
  int64_t request;
  int64_t row_begin, row_end;
  int head_begin, head_end;
  int kv_head;

  int num_heads() const { return head_end - head_begin; }
  int num_queries() const { return static_cast<int>(row_end - row_begin) * num_heads(); }
};

int padded_head_dim(const PagedAttentionParams& p) { return (p.cache.head_dim + 31) / 32 * 32; }

int num_masked(const PagedAttentionParams& p, int64_t row) {
  int count = 0;
  for (int w = 0; w < p.mask_words; ++w) count += __builtin_popcountll(p.ancestor_mask[row * p.mask_words + w]);
  return count;
}

// One past the last logical position that the row sees.
int64_t visible_end(const PagedAttentionParams& p, int64_t request, int64_t row) {
  const int64_t own = p.ancestor_mask == nullptr ? row - p.row_begin[request] + 1 : num_masked(p, row);
  return p.kv_length[request] + own;
}

// First logical position that a row sees whose last one is end - 1.
int64_t visible_begin(const PagedAttentionParams& p, int64_t request, int64_t end) {
  const int64_t begin = p.kv_begin[request];
  return p.sliding_window > 0 && end - p.sliding_window > begin ? end - p.sliding_window : begin;
}

void attend_tile(Workspace& w, const KvHead& kv, int begin, int end, int first) {
  using Source = TileSource<Workspace::kQueryStride>;
  const Source source = {w.tile.key, w.tile.value, kv.padded_dim};
  attend_source<Blocks<Source>>(w, source, {kv.head_dim, kv.padded_dim}, begin, end, first);
}

// Whether few enough queries share the item for reading the pages directly.
bool reads_pages(const KvHead& kv, int num_queries) {
  return num_queries <= kFewQueries && kv.page_size % 16 == 0 && kv.head_dim % 32 == 0;
}

template <typename Cache>
void attend_pages(Workspace& w, const KvHead& kv, int64_t start, int begin, int end, int first, int64_t stored) {
  using Source = PageSource<Cache>;
  Source source = {Source::locate(kv, start, first, w.end[end - 1]), {}, kv.page_size, kv.head_dim};
  const int64_t next = stored - start - kAttentionSplit;  // entries of the next splits
  const int next_end = next < kAttentionSplit ? static_cast<int>(next) : kAttentionSplit;
  source.next = next > 0 ? Source::locate(kv, start + kAttentionSplit, 0, next_end) : source.now;
  attend_source<SmallBlocks<Source>>(w, source, {kv.head_dim, kv.padded_dim}, begin, end, first);
}

void load_queries(const PagedAttentionParams& p, const Item& item, const KvHead& kv, Workspace& w) {
  const Lanes scale = broadcast(p.scale);
  int q = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    for (int head = item.head_begin; head < item.head_end; ++head, ++q) {
      const float* source = p.query + row * p.query_stride + int64_t{head} * kv.head_dim;
      float* query = w.query + q * Workspace::kQueryStride;
      int d = 0;
      for (; d + 16 <= kv.head_dim; d += 16) store(query + d, mul(load(source + d), scale));
      if (d < kv.head_dim) store(query + d, mul(load_partial(source + d, 8), scale));
    }
  }
}

void clear_state(const PagedAttentionParams& p, const Item& item, const KvHead& kv, Workspace& w) {
  for (int q = 0; q < item.num_queries(); ++q) {
    w.max[q] = p.sinks == nullptr ? kMinusInfinity : p.sinks[item.head_begin + q % item.num_heads()];
    w.sum[q] = p.sinks == nullptr ? 0.0f : 1.0f;
    for (int d = 0; d < kv.padded_dim; d += 16) store(w.output + q * Workspace::kQueryStride + d, zero());
  }
}

void store_outputs(const PagedAttentionParams& p, const Item& item, const KvHead& kv, const Workspace& w) {
  int q = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    for (int head = item.head_begin; head < item.head_end; ++head, ++q) {
      const Lanes inverse = broadcast(1.0f / w.sum[q]);
      float* output = p.output + (row * p.num_heads + head) * kv.head_dim;
      const float* sum = w.output + q * Workspace::kQueryStride;
      int d = 0;
      for (; d + 16 <= kv.head_dim; d += 16) store(output + d, mul(load(sum + d), inverse));
      if (d < kv.head_dim) store_partial(output + d, mul(load(sum + d), inverse), 8);
    }
  }
}

// The split that holds the request's first speculative rows, or one after it: row by row, with the row's ancestors
// gathered into their logical positions.
void attend_masked_split(const PagedAttentionParams& p, const Item& item, const KvHead& kv, int64_t start, int first,
                         Workspace& w) {
  const CacheFunctions& cache = cache_functions(kv.dtype);
  const int64_t length = p.kv_length[item.request];
  const int stored = length > start ? static_cast<int>(length - start) : 0;
  if (stored > first) cache.unpack_split(kv, start, first, stored, w.tile);
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    int64_t entries[kAttentionSplit];
    int count = 0;
    int64_t position = length;
    for (int word = 0; word < p.mask_words; ++word) {
      for (uint64_t bits = p.ancestor_mask[row * p.mask_words + word]; bits != 0; bits &= bits - 1, ++position) {
        if (position < start || position >= start + kAttentionSplit) continue;
        entries[count++] = length + 64 * word + __builtin_ctzll(bits);
      }
    }
    const int64_t window = visible_begin(p, item.request, position) - start;
    const int row_first =
        window > first ? static_cast<int>(window < kAttentionSplit ? window : kAttentionSplit) : first;
    if (stored + count <= row_first) continue;
    cache.gather_entries(kv, entries, stored, count, w.tile);
    const int begin = static_cast<int>(row - item.row_begin) * item.num_heads();
    for (int q = begin; q < begin + item.num_heads(); ++q) w.end[q] = stored + count;
    attend_tile(w, kv, begin, begin + item.num_heads(), row_first);
    merge_split(w, begin, begin + item.num_heads(), kv.padded_dim);
  }
}

// Positions of a split that a row sees: begin .. end - 1, none if begin >= end.
struct RowRange {
  int begin, end;
};

RowRange range_in_split(const PagedAttentionParams& p, const Item& item, int64_t row, int64_t start) {
  const int64_t end = visible_end(p, item.request, row), begin = visible_begin(p, item.request, end) - start;
  const auto clip = [](int64_t x) { return static_cast<int>(x < 0 ? 0 : x < kAttentionSplit ? x : kAttentionSplit); };
  return {clip(begin), clip(end - start)};
}

// Whether a row's window begins within the split or after it.
bool windows_begin(const PagedAttentionParams& p, const Item& item, int64_t start, int first) {
  if (p.sliding_window <= 0) return false;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    if (range_in_split(p, item, row, start).begin > first) return true;
  }
  return false;
}

// A split that some rows do not see from its first entry on: row by row.
void attend_windows(const PagedAttentionParams& p, const Item& item, const KvHead& kv, int64_t start, Workspace& w) {
  RowRange all = {kAttentionSplit, 0};
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const RowRange own = range_in_split(p, item, row, start);
    if (own.begin >= own.end) continue;
    all = {own.begin < all.begin ? own.begin : all.begin, own.end > all.end ? own.end : all.end};
  }
  if (all.begin >= all.end) return;
  cache_functions(kv.dtype).unpack_split(kv, start, all.begin, all.end, w.tile);
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const RowRange own = range_in_split(p, item, row, start);
    if (own.begin >= own.end) continue;
    const int begin = static_cast<int>(row - item.row_begin) * item.num_heads(), end = begin + item.num_heads();
    for (int q = begin; q < end; ++q) w.end[q] = own.end;
    attend_tile(w, kv, begin, end, own.begin);
    merge_split(w, begin, end, kv.padded_dim);
  }
}

// m, l and o of a split in which every row sees a leading part of the same entries. Returns the first query that sees
// any: early rows of a chunk may end before the split.
int attend_shared_split(const PagedAttentionParams& p, const Item& item, const KvHead& kv, int64_t start, int first,
                        Workspace& w) {
  int begin = 0, longest = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const int64_t visible = visible_end(p, item.request, row) - start;
    const int end = visible < kAttentionSplit ? static_cast<int>(visible) : kAttentionSplit;
    const int q = static_cast<int>(row - item.row_begin) * item.num_heads();
    for (int i = 0; i < item.num_heads(); ++i) w.end[q + i] = end;
    if (end <= first) begin = q + item.num_heads();
    longest = end > longest ? end : longest;
  }
  const int num_queries = item.num_queries();
  if (reads_pages(kv, num_queries)) {
    const auto attend = kv.dtype == DType::kFloat32    ? attend_pages<StoredFloat32>
                        : kv.dtype == DType::kBFloat16 ? attend_pages<StoredBFloat16>
                                                       : attend_pages<StoredFloat16>;
    attend(w, kv, start, begin, num_queries, first, p.kv_length[item.request]);
  } else {
    cache_functions(kv.dtype).unpack_split(kv, start, first, longest, w.tile);
    attend_tile(w, kv, begin, num_queries, first);
  }
  return begin;
}

KvHead kv_head_of(const PagedAttentionParams& p, const Item& item) {
  const int64_t block = int64_t{p.cache.head_dim} * p.cache.page_size, element = dtype_size(p.cache.dtype);
  return {static_cast<const char*>(p.cache.key) + item.kv_head * block * element,
          static_cast<const char*>(p.cache.value) + item.kv_head * block * element,
          p.page_table + item.request * p.page_table_stride,
          block * p.cache.num_kv_heads,
          p.cache.page_size,
          p.cache.head_dim,
          padded_head_dim(p),
          p.cache.dtype};
}

int first_in_split(const PagedAttentionParams& p, int64_t request, int64_t start) {
  return p.kv_begin[request] > start ? static_cast<int>(p.kv_begin[request] - start) : 0;
}

// Merges the splits from `start` on into the item's (M, L, O).
void attend_splits(const PagedAttentionParams& p, const Item& item, const KvHead& kv, int64_t start, Workspace& w) {
  int64_t end = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const int64_t visible = visible_end(p, item.request, row);
    end = visible > end ? visible : end;
  }
  for (; start < end; start += kAttentionSplit) {
    const int first = first_in_split(p, item.request, start);
    const bool shared = p.ancestor_mask == nullptr || start + kAttentionSplit <= p.kv_length[item.request];
    if (!shared) {
      attend_masked_split(p, item, kv, start, first, w);
    } else if (windows_begin(p, item, start, first)) {
      attend_windows(p, item, kv, start, w);
    } else {
      const int begin = attend_shared_split(p, item, kv, start, first, w);
      merge_split(w, begin, item.num_queries(), kv.padded_dim);
    }
  }
}

// Where the first split begins that any row sees.
int64_t first_split(const PagedAttentionParams& p, const Item& item) {
  int64_t begin = visible_begin(p, item.request, visible_end(p, item.request, item.row_begin));
  for (int64_t row = item.row_begin + 1; row < item.row_end; ++row) {
    const int64_t own = visible_begin(p, item.request, visible_end(p, item.request, row));
    begin = own < begin ? own : begin;
  }
  return begin / kAttentionSplit * kAttentionSplit;
}

void attend_item(const PagedAttentionParams& p, const Item& item) {
  Workspace& w = workspace;
  const KvHead kv = kv_head_of(p, item);
  load_queries(p, item, kv, w);
  clear_state(p, item, kv, w);
  attend_splits(p, item, kv, first_split(p, item), w);
  store_outputs(p, item, kv, w);
}

}  // namespace

}  // namespace eagle31rt::E31_ISA
