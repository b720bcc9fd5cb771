// Unpacks one split of a KV head into float32 tiles that every query of a block then shares:
//   key   [head_dim][kAttentionSplit]      lane = position, so that scores need no horizontal sum
//   value [kAttentionSplit][padded_dim]    lane = dim, zero past head_dim
// Unpacking costs about 1000 cycles a split and KV head (head_dim 64); a block of 48 queries then computes for 25000.
#pragma once

#include <cstdint>

#include "device/cpu/simd.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

struct KvTile {
  alignas(64) float key[kMaxHeadDim * kAttentionSplit];
  alignas(64) float value[kAttentionSplit * kMaxHeadDim];
};

// One KV head of one request.
struct KvHead {
  const void* key;  // first page's block of this head
  const void* value;
  const int32_t* page_table;  // of the request
  int64_t page_stride;        // elements between the blocks of consecutive pages
  int64_t page_size;
  int head_dim;
  int padded_dim;  // head_dim rounded up to a multiple of 32
  DType dtype;
};

namespace {

template <typename Cache>
void unpack_value_row(const typename Cache::Element* source, int head_dim, int padded_dim, float* row) {
  int d = 0;
  for (; d + 16 <= head_dim; d += 16) store(row + d, Cache::widen(source + d));
  if (d < head_dim) {
    typename Cache::Element rest[16] = {};
    std::memcpy(rest, source + d, sizeof(rest[0]) * (head_dim - d));
    store(row + d, Cache::widen(rest));
    d += 16;
  }
  for (; d < padded_dim; d += 16) store(row + d, zero());
}

// The keys of `count` (at most 16) entries, one pointer each, into lanes first .. first + count - 1.
template <typename Cache>
void gather_keys(const typename Cache::Element* const* entries, int64_t dim_stride, int head_dim, int first, int count,
                 float* key) {
  for (int d = 0; d < head_dim; ++d) {
    typename Cache::Element column[16] = {};
    for (int i = 0; i < count; ++i) column[i] = entries[i][d * dim_stride];
    store_partial(key + d * kAttentionSplit + first, Cache::widen(column), count);
  }
}

// Entries index[0 .. count - 1] of the request into positions first .. first + count - 1 of the tile.
template <typename Cache>
void gather_entries(const KvHead& kv, const int64_t* index, int first, int count, KvTile& tile) {
  using Storage = typename Cache::Element;
  for (int begin = 0; begin < count; begin += 16) {
    const int group = count - begin < 16 ? count - begin : 16;
    const Storage* entries[16] = {};
    for (int i = 0; i < group; ++i) {
      const int64_t entry = index[begin + i], offset = entry % kv.page_size;
      const int64_t block = kv.page_table[entry / kv.page_size] * kv.page_stride;
      entries[i] = static_cast<const Storage*>(kv.key) + block + offset;
      unpack_value_row<Cache>(static_cast<const Storage*>(kv.value) + block + offset * kv.head_dim, kv.head_dim,
                              kv.padded_dim, tile.value + (first + begin + i) * kv.padded_dim);
    }
    gather_keys<Cache>(entries, kv.page_size, kv.head_dim, first + begin, group, tile.key);
  }
}

// Entries start + first .. start + end - 1 into positions first .. end - 1, where start is a multiple of
// kAttentionSplit and page_size one of 16: keys come in aligned groups of 16 positions of one page. Such a group may
// carry a few entries that nobody sees; callers replace their scores.
template <typename Cache>
void unpack_aligned(const KvHead& kv, int64_t start, int first, int end, KvTile& tile) {
  using Storage = typename Cache::Element;
  for (int t = first & ~15; t < end; t += 16) {
    const int64_t entry = start + t, offset = entry % kv.page_size;
    const int64_t block = kv.page_table[entry / kv.page_size] * kv.page_stride;
    const Storage* key = static_cast<const Storage*>(kv.key) + block + offset;
    for (int d = 0; d < kv.head_dim; ++d)
      store(tile.key + d * kAttentionSplit + t, Cache::widen(key + d * kv.page_size));
    const Storage* value = static_cast<const Storage*>(kv.value) + block + offset * kv.head_dim;
    for (int i = first > t ? first - t : 0; i < 16 && t + i < end; ++i) {
      unpack_value_row<Cache>(value + i * kv.head_dim, kv.head_dim, kv.padded_dim,
                              tile.value + (t + i) * kv.padded_dim);
    }
  }
}

template <typename Cache>
void unpack_split(const KvHead& kv, int64_t start, int first, int end, KvTile& tile) {
  if (kv.page_size % 16 == 0) return unpack_aligned<Cache>(kv, start, first, end, tile);
  int64_t index[kAttentionSplit];
  for (int t = first; t < end; ++t) index[t - first] = start + t;
  gather_entries<Cache>(kv, index, first, end - first, tile);
}

}  // namespace

}  // namespace eagle31rt::E31_ISA
