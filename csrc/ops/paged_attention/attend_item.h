// One work item of attention: a KV head and a few rows of one request. The splits are unpacked one after the other into
// a tile that all rows and all heads of the group share; register blocks of queries (row, head) then compute on it.
#pragma once

#include "ops/paged_attention/block_kernels.h"
#include "ops/paged_attention/kv_source.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

constexpr int kMaxQueries = 48;  // of one item; more gain nothing, the tile is then 4 % of the work

constexpr float kMinusInfinity = -__builtin_inff();

// What one thread needs for one item. Static per thread: too large for a stack of unknown size.
struct Workspace {
  KvTile tile;
  alignas(64) float query[kMaxQueries * kQueryStride];         // scaled
  alignas(64) float score[kMaxQueries * kAttentionSplit];      // then the weights p
  alignas(64) float split_output[kMaxQueries * kQueryStride];  // o of the current split
  alignas(64) float output[kMaxQueries * kQueryStride];        // O so far
  alignas(64) float split_max[kMaxQueries], split_sum[kMaxQueries];
  alignas(64) float max[kMaxQueries], sum[kMaxQueries];
  int end[kMaxQueries];  // visible positions of the current split end here
};
static_assert(kMaxQueries % 16 == 0, "the merge runs over whole vectors of queries");

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

Lanes finite_or_zero(Lanes m) { return select(less(broadcast(kMinusInfinity), m), m, zero()); }

// score[first .. end - 1] becomes the weights p; returns m and l of the split. Groups: vectors of 16 positions in use.
template <int Groups, bool Whole>
void softmax_groups(float* score, int first, int end, float* max, float* sum) {
  const Lanes lowest = broadcast(kMinusInfinity);
  Lanes x[Groups];
  Lanes most = lowest;
#pragma GCC unroll 4
  for (int g = 0; g < Groups; ++g) {
    x[g] = load(score + 16 * g);
    if (!Whole) {
      const LaneMask before = first_lanes(first < 16 * g ? 0 : first < 16 * g + 16 ? first - 16 * g : 16);
      const LaneMask until = first_lanes(end < 16 * g + 16 ? end - 16 * g : 16);
      x[g] = select(before, lowest, select(until, x[g], lowest));
    }
    most = maximum(most, x[g]);
  }
  *max = reduce_max(most);
  const Lanes shift = finite_or_zero(broadcast(*max));
  Lanes total = zero();
#pragma GCC unroll 4
  for (int g = 0; g < Groups; ++g) {
    const Lanes p = exp(sub(x[g], shift));
    store(score + 16 * g, p);
    total = add(total, p);
  }
  *sum = reduce_add(total);
}

void softmax_split(float* score, int first, int end, float* max, float* sum) {
  if (first == 0 && end == kAttentionSplit) return softmax_groups<4, true>(score, first, end, max, sum);
  if (end > 48) return softmax_groups<4, false>(score, first, end, max, sum);
  if (end > 32) return softmax_groups<3, false>(score, first, end, max, sum);
  if (end > 16) return softmax_groups<2, false>(score, first, end, max, sum);
  softmax_groups<1, false>(score, first, end, max, sum);
}

// m, l and o of queries begin .. end - 1 over the split's positions first .. w.end[query] - 1. w.end does not descend.
template <typename Blocks, typename Source>
void attend_source(Workspace& w, const KvHead& kv, const Source& source, int begin, int end, int first) {
  for (int q = begin; q < end; q += kMaxBlock) {
    const int count = end - q < kMaxBlock ? end - q : kMaxBlock;
    float* score = w.score + q * kAttentionSplit;
    Blocks::kScore[count](w.query + q * kQueryStride, source, kv.head_dim, first, w.end[q + count - 1], score);
    for (int r = 0; r < count; ++r) {
      softmax_split(score + r * kAttentionSplit, first, w.end[q + r], &w.split_max[q + r], &w.split_sum[q + r]);
    }
  }
  for (int q = begin; q < end; q += kMaxBlock) {
    const int count = end - q < kMaxBlock ? end - q : kMaxBlock;
    const float* weight = w.score + q * kAttentionSplit;
    float* output = w.split_output + q * kQueryStride;
    // Together up to the shortest row, then each run of rows to its own end.
    int done = w.end[q];
    Blocks::kWeigh[count](weight, source, kv.padded_dim, first, done, false, output);
    for (int r = 1; r < count; ++r) {
      if (w.end[q + r] == done) continue;
      Blocks::kWeigh[count - r](weight + r * kAttentionSplit, source, kv.padded_dim, done, w.end[q + r], true,
                                output + r * kQueryStride);
      done = w.end[q + r];
    }
  }
}

void attend_tile(Workspace& w, const KvHead& kv, int begin, int end, int first) {
  const TileSource source = {w.tile.key, w.tile.value, kv.padded_dim};
  attend_source<Blocks<TileSource>>(w, kv, source, begin, end, first);
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
  attend_source<SmallBlocks<Source>>(w, kv, source, begin, end, first);
}

// Folds the split into M, L and O of queries begin .. end - 1; those of other queries keep their bits.
void merge_split(Workspace& w, int begin, int end, int padded_dim) {
  alignas(64) float old_scale[kMaxQueries], new_scale[kMaxQueries];
  for (int q = begin / 16 * 16; q < end; q += 16) {
    const Lanes old_max = load(w.max + q), split_max = load(w.split_max + q);
    const Lanes max = maximum(old_max, split_max);
    const Lanes shift = finite_or_zero(max);
    const Lanes a = exp(sub(old_max, shift)), b = exp(sub(split_max, shift));
    const LaneMask before = first_lanes(begin > q ? begin - q : 0), until = first_lanes(end - q < 16 ? end - q : 16);
    store(w.max + q, select(before, old_max, select(until, max, old_max)));
    const Lanes old_sum = load(w.sum + q);
    const Lanes sum = multiply_add(old_sum, a, mul(load(w.split_sum + q), b));
    store(w.sum + q, select(before, old_sum, select(until, sum, old_sum)));
    store(old_scale + q, a);
    store(new_scale + q, b);
  }
  for (int q = begin; q < end; ++q) {
    const Lanes a = broadcast(old_scale[q]), b = broadcast(new_scale[q]);
    for (int d = 0; d < padded_dim; d += 16) {
      float* output = w.output + q * kQueryStride + d;
      store(output, multiply_add(load(output), a, mul(load(w.split_output + q * kQueryStride + d), b)));
    }
  }
}

void load_queries(const PagedAttentionParams& p, const Item& item, const KvHead& kv, Workspace& w) {
  const Lanes scale = broadcast(p.scale);
  int q = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    for (int head = item.head_begin; head < item.head_end; ++head, ++q) {
      const float* source = p.query + row * p.query_stride + int64_t{head} * kv.head_dim;
      float* query = w.query + q * kQueryStride;
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
    for (int d = 0; d < kv.padded_dim; d += 16) store(w.output + q * kQueryStride + d, zero());
  }
}

void store_outputs(const PagedAttentionParams& p, const Item& item, const KvHead& kv, const Workspace& w) {
  int q = 0;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    for (int head = item.head_begin; head < item.head_end; ++head, ++q) {
      const Lanes inverse = broadcast(1.0f / w.sum[q]);
      float* output = p.output + (row * p.num_heads + head) * kv.head_dim;
      const float* sum = w.output + q * kQueryStride;
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
