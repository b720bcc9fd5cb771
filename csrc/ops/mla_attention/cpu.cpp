// A step goes through the cache in waves of splits. All threads first unpack the splits of a wave into tiles, so that
// an entry is read from memory once, then take items of queries (rows x heads of a request) through the tiles, in
// ascending order. Between waves O lies in the output, M and L beside it.
#include <cstring>

#include "device/cpu/simd.h"
#include "device/cpu/transpose.h"
#include "device/execution_context.h"
#include "ops/linear/scratch.h"
#include "ops/mla_attention/latent_splits.h"
#include "ops/mla_attention/mla_attention.h"
#include "ops/paged_attention/attend_queries.h"
#include "ops/paged_attention/kv_source.h"

namespace eagle31rt::E31_ISA {

namespace {

// 272 KiB at the published sizes; with 48 queries of 6.8 KiB each it fits a second-level cache of 1 MiB.
struct LatentTile {
  alignas(64) float key[kMaxLatentEntry * kAttentionSplit];  // as KvTile
  alignas(64) float value[kAttentionSplit * kMaxLatentDim];
};

using LatentState = QueryState<query_stride(kMaxLatentEntry)>;

constexpr int kGroups = kAttentionSplit / 16;
// Tiles of a wave: enough for all threads to have some; 2.2 MB for two of them.
constexpr int kTilesPerThread = 4, kMaxTiles = 128;

HeadDims dims_of(const MlaAttentionParams& p) {
  return {p.cache.latent_dim + p.cache.rope_dim, (p.cache.latent_dim + 31) / 32 * 32};
}

int64_t num_queries(const MlaAttentionParams& p, int64_t request) {
  return int64_t{p.row_begin[request + 1] - p.row_begin[request]} * p.num_heads;
}

// Queries begin .. end - 1 of a request; a query is row * num_heads + head, its row counted from the request's first.
struct Queries {
  int64_t request, begin, end;

  int count() const { return static_cast<int>(end - begin); }
};

// Memory of a call: tiles, what each thread needs, and M and L of every query.
struct Memory {
  LatentTile* tiles;
  LatentState* states;  // one per thread
  float* sums;          // [num_rows * num_heads, 2]

  Memory(const MlaAttentionParams& p, int num_threads, int num_tiles) {
    constexpr int64_t kTileFloats = sizeof(LatentTile) / sizeof(float),
                      kStateFloats = sizeof(LatentState) / sizeof(float);
    const int64_t num_sums = p.row_begin[p.num_requests] * int64_t{p.num_heads} * 2;
    float* floats = linear_scratch(num_tiles * kTileFloats + num_threads * kStateFloats + num_sums);
    tiles = reinterpret_cast<LatentTile*>(floats);
    states = reinterpret_cast<LatentState*>(floats + num_tiles * kTileFloats);
    sums = floats + num_tiles * kTileFloats + num_threads * kStateFloats;
  }
};

// Lanes d .. d + 15 of an entry, zero from its end on.
template <typename Cache>
Lanes widen_part(const typename Cache::Element* entry, int d, int dim) {
  if (d + 16 <= dim) return Cache::widen(entry + d);
  typename Cache::Element rest[16] = {};
  std::memcpy(rest, entry + d, sizeof(rest[0]) * static_cast<size_t>(dim - d));
  return Cache::widen(rest);
}

// Entries index[0 .. count - 1] of a request, at most 16, into positions first .. first + count - 1 of the tile. An
// entry is read once: what is its value on the way is turned to be its key.
template <typename Cache>
void unpack_entries(const MlaAttentionParams& p, int64_t request, const int64_t* index, int first, int count,
                    LatentTile& tile) {
  using Element = typename Cache::Element;
  const HeadDims dims = dims_of(p);
  const Element* entries[16] = {};
  for (int i = 0; i < count; ++i) {
    const int64_t page = p.page_table[request * p.page_table_stride + index[i] / p.cache.page_size];
    entries[i] = static_cast<const Element*>(p.cache.data) +
                 (page * p.cache.page_size + index[i] % p.cache.page_size) * dims.key;
  }
  for (int d = 0; d < dims.key; d += 16) {
    Lanes block[16];
    for (int i = 0; i < 16; ++i) block[i] = i < count ? widen_part<Cache>(entries[i], d, dims.key) : zero();
    if (d < dims.value) {
      for (int i = 0; i < count; ++i) store(tile.value + (first + i) * dims.value + d, block[i]);
    }
    transpose(block);
    for (int i = 0; i < 16 && d + i < dims.key; ++i) {
      store_partial(tile.key + (d + i) * kAttentionSplit + first, block[i], count);
    }
  }
}

void unpack_entries(const MlaAttentionParams& p, int64_t request, const int64_t* index, int first, int count,
                    LatentTile& tile) {
  if (p.cache.dtype == DType::kFloat32) return unpack_entries<StoredFloat32>(p, request, index, first, count, tile);
  if (p.cache.dtype == DType::kBFloat16) return unpack_entries<StoredBFloat16>(p, request, index, first, count, tile);
  unpack_entries<StoredFloat16>(p, request, index, first, count, tile);
}

// Positions 16 group .. 16 group + 15 of a split.
void unpack_group(const MlaAttentionParams& p, const LatentSplit& split, int group, LatentTile& tile) {
  const int begin = split.begin > 16 * group ? split.begin : 16 * group;
  const int end = split.end < 16 * group + 16 ? split.end : 16 * group + 16;
  int64_t index[16];
  for (int t = begin; t < end; ++t) index[t - begin] = split.start + t;
  if (end > begin) unpack_entries(p, split.request, index, begin, end - begin, tile);
}

void load_queries(const MlaAttentionParams& p, const Queries& queries, LatentState& w) {
  const int dim = dims_of(p).key;
  const Lanes scale = broadcast(p.scale);
  for (int q = 0; q < queries.count(); ++q) {
    const int64_t row = p.row_begin[queries.request] + (queries.begin + q) / p.num_heads;
    const float* source = p.query + row * p.query_stride + (queries.begin + q) % p.num_heads * dim;
    float* query = w.query + q * LatentState::kQueryStride;
    int d = 0;
    for (; d + 16 <= dim; d += 16) store(query + d, mul(load(source + d), scale));
    if (d < dim) store(query + d, mul(load_partial(source + d, 8), scale));
  }
}

// (M, L, O) of queries of which no split was merged yet.
void clear_state(const MlaAttentionParams& p, const Queries& queries, LatentState& w) {
  for (int q = 0; q < queries.count(); ++q) {
    w.max[q] = kMinusInfinity;
    w.sum[q] = 0;
    for (int d = 0; d < dims_of(p).value; d += 16) store(w.output + q * LatentState::kQueryStride + d, zero());
  }
}

void restore_state(const MlaAttentionParams& p, const Queries& queries, const float* sums, LatentState& w) {
  const int64_t first = int64_t{p.row_begin[queries.request]} * p.num_heads + queries.begin;
  const int dim = p.cache.latent_dim, padded_dim = dims_of(p).value;
  for (int q = 0; q < queries.count(); ++q) {
    w.max[q] = sums[2 * (first + q)];
    w.sum[q] = sums[2 * (first + q) + 1];
    const float* source = p.output + (first + q) * dim;
    float* output = w.output + q * LatentState::kQueryStride;
    for (int d = 0; d < padded_dim; d += 16) {
      const int rest = dim - d;
      store(output + d, rest >= 16 ? load(source + d) : rest > 0 ? load_partial(source + d, rest) : zero());
    }
  }
}

// O to the output; divided by L if no split follows, else M and L to sums.
void save_state(const MlaAttentionParams& p, const Queries& queries, bool ended, const LatentState& w, float* sums) {
  const int64_t first = int64_t{p.row_begin[queries.request]} * p.num_heads + queries.begin;
  const int dim = p.cache.latent_dim;
  for (int q = 0; q < queries.count(); ++q) {
    sums[2 * (first + q)] = w.max[q];
    sums[2 * (first + q) + 1] = w.sum[q];
    const Lanes factor = broadcast(ended ? 1.0f / w.sum[q] : 1.0f);
    float* output = p.output + (first + q) * dim;
    const float* sum = w.output + q * LatentState::kQueryStride;
    int d = 0;
    for (; d + 16 <= dim; d += 16) store(output + d, mul(load(sum + d), factor));
    if (d < dim) store_partial(output + d, mul(load(sum + d), factor), dim - d);
  }
}

// Merges positions first .. w.end[query] - 1 of a tile into queries begin .. count - 1.
void attend_tile(const MlaAttentionParams& p, const LatentTile& tile, int begin, int count, int first, LatentState& w) {
  using Source = TileSource<LatentState::kQueryStride>;
  const HeadDims dims = dims_of(p);
  const Source source = {tile.key, tile.value, dims.value};
  attend_source<Blocks<Source>>(w, source, dims, begin, count, first);
  merge_split(w, begin, count, dims.value);
}

void attend_shared_split(const MlaAttentionParams& p, const Queries& queries, const LatentSplit& split,
                         const LatentTile& tile, LatentState& w) {
  int begin = 0;  // the first query that sees any of it: early rows of a chunk may end before
  for (int q = 0; q < queries.count(); ++q) {
    const int64_t row = (queries.begin + q) / p.num_heads;
    const int64_t visible = p.kv_length[split.request] + row + 1 - split.start;
    const bool whole = p.ancestor_mask != nullptr || visible > kAttentionSplit;
    w.end[q] = whole ? kAttentionSplit : static_cast<int>(visible);
    if (w.end[q] <= split.begin) begin = q + 1;
  }
  if (begin < queries.count()) attend_tile(p, tile, begin, queries.count(), split.begin, w);
}

// Some consecutive splits, and the items that go through them.
class Wave {
 public:
  int num_splits = 0;
  LatentSplit splits[kMaxTiles];
  int64_t num_items = 0;

  // Takes up to `most` splits; false if none is left.
  bool take(const MlaAttentionParams& p, int num_threads, int most, LatentCursor& cursor) {
    num_splits = 0;
    while (num_splits < most && next_split(p, cursor, splits[num_splits])) ++num_splits;
    int64_t total = 0;
    for (int s = 0; s < num_splits; s = run_end(s)) total += num_queries(p, splits[s].request);
    // Two items a thread, where that leaves them whole blocks of queries.
    const int64_t fair = total / (2 * num_threads);
    queries_per_item_ = fair < kMaxBlock ? kMaxBlock : fair < kMaxQueries ? fair : kMaxQueries;
    num_items = 0;
    for (int s = 0; s < num_splits; s = run_end(s)) num_items += items_of(p, s);
    return num_splits > 0;
  }

  // The queries of an item and its splits, begin .. end - 1.
  Queries item(const MlaAttentionParams& p, int64_t index, int& begin, int& end) const {
    begin = 0;
    for (; index >= items_of(p, begin); begin = run_end(begin)) index -= items_of(p, begin);
    end = run_end(begin);
    const int64_t request = splits[begin].request, count = num_queries(p, request), items = items_of(p, begin);
    return {request, count * index / items, count * (index + 1) / items};
  }

 private:
  // One past the splits of the request that split `begin` belongs to.
  int run_end(int begin) const {
    int end = begin + 1;
    while (end < num_splits && splits[end].request == splits[begin].request) ++end;
    return end;
  }
  int64_t items_of(const MlaAttentionParams& p, int begin) const {
    return (num_queries(p, splits[begin].request) + queries_per_item_ - 1) / queries_per_item_;
  }

  int64_t queries_per_item_ = 0;
};

void attend_item(const MlaAttentionParams& p, const Wave& wave, int64_t index, const Memory& memory, LatentState& w) {
  int begin, end;
  const Queries queries = wave.item(p, index, begin, end);
  load_queries(p, queries, w);
  if (wave.splits[begin].start == first_split(p, queries.request)) {
    clear_state(p, queries, w);
  } else {
    restore_state(p, queries, memory.sums, w);
  }
  for (int s = begin; s < end; ++s) attend_shared_split(p, queries, wave.splits[s], memory.tiles[s], w);
  const bool last = wave.splits[end - 1].start + kAttentionSplit >= shared_end(p, queries.request);
  save_state(p, queries, last && p.ancestor_mask == nullptr, w, memory.sums);
}

// What a row of a tree sees of the split at `start`, in logical order: `index` by position, from `first` on. Returns
// the end of the positions.
int row_positions(const MlaAttentionParams& p, int64_t request, int64_t row, int64_t start, int first, int64_t* index) {
  const int64_t length = p.kv_length[request];
  int end = first;
  for (; end < kAttentionSplit && start + end < length; ++end) index[end] = start + end;
  int64_t position = length;
  for (int word = 0; word < p.mask_words; ++word) {
    for (uint64_t bits = p.ancestor_mask[row * p.mask_words + word]; bits != 0; bits &= bits - 1, ++position) {
      if (position < start || position >= start + kAttentionSplit) continue;
      index[end++] = length + 64 * word + __builtin_ctzll(bits);
    }
  }
  return end;
}

// The splits behind the shared ones, for all heads of one row of a tree.
void attend_tree_row(const MlaAttentionParams& p, int64_t row, const Memory& memory, LatentTile& tile, LatentState& w) {
  int64_t request = 0;
  while (p.row_begin[request + 1] <= row) ++request;
  const int64_t shared = shared_end(p, request), first_start = first_split(p, request);
  const bool fresh = shared <= first_start;  // nothing of this row was merged yet
  const int64_t first_tail = fresh ? first_start : shared;
  const int64_t end = p.kv_length[request] + num_ancestors(p, row);
  for (int64_t start = first_tail; start < end; start += kAttentionSplit) {
    const int64_t skipped = p.kv_begin[request] - start;
    const int first = skipped > 0 ? static_cast<int>(skipped) : 0;
    int64_t index[kAttentionSplit];
    const int positions = row_positions(p, request, row, start, first, index);
    for (int t = first; t < positions; t += 16) {
      unpack_entries(p, request, index + t, t, positions - t < 16 ? positions - t : 16, tile);
    }
    const int64_t begin = (row - p.row_begin[request]) * p.num_heads;
    for (int64_t q = 0; q < p.num_heads; q += kMaxQueries) {
      const int64_t rest = p.num_heads - q;
      const Queries queries = {request, begin + q, begin + q + (rest < kMaxQueries ? rest : kMaxQueries)};
      load_queries(p, queries, w);
      fresh&& start == first_tail ? clear_state(p, queries, w) : restore_state(p, queries, memory.sums, w);
      for (int i = 0; i < queries.count(); ++i) w.end[i] = positions;
      attend_tile(p, tile, 0, queries.count(), first, w);
      save_state(p, queries, start + kAttentionSplit >= end, w, memory.sums);
    }
  }
}

}  // namespace

void mla_attention(const MlaAttentionParams& p, ExecutionContext& context) {
  ThreadPool& pool = context.pool;
  const int num_threads = pool.num_threads();
  const int wanted = kTilesPerThread * num_threads;
  const int most = wanted < kMaxTiles ? wanted : kMaxTiles;
  const Memory memory(p, num_threads, num_threads > most ? num_threads : most);  // a tree takes one tile a thread
  LatentCursor cursor;
  Wave wave;
  while (wave.take(p, num_threads, most, cursor)) {
    auto unpack = [&](int64_t index, int) {
      unpack_group(p, wave.splits[index / kGroups], static_cast<int>(index % kGroups), memory.tiles[index / kGroups]);
    };
    pool.parallel_for(int64_t{wave.num_splits} * kGroups, unpack);
    auto attend = [&](int64_t index, int thread) { attend_item(p, wave, index, memory, memory.states[thread]); };
    pool.parallel_for(wave.num_items, attend);
  }
  if (p.ancestor_mask == nullptr) return;
  auto attend_tree = [&](int64_t row, int thread) {
    attend_tree_row(p, row, memory, memory.tiles[thread], memory.states[thread]);
  };
  pool.parallel_for(p.row_begin[p.num_requests], attend_tree);
}

}  // namespace eagle31rt::E31_ISA
