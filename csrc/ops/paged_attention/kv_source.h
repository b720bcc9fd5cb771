// What the block kernels read: an unpacked tile that many queries share, or the pages themselves when there are so few
// queries that unpacking would cost more than it saves (decoding). Both give the same floats.
#pragma once

#include "ops/paged_attention/kv_tile.h"

namespace eagle31rt::E31_ISA {

namespace {

// Floats between queries: a cache line more than a multiple of 256 bytes, so that the queries of a block do not share
// cache sets.
constexpr int query_stride(int max_head_dim) { return max_head_dim + 16; }

template <int kStride>
struct TileSource {
  static constexpr int kQueryStride = kStride;
  const float* key_tile;
  const float* value_tile;
  int value_stride;

  // Lanes are positions t .. t + 15.
  Lanes key(int d, int t) const { return load(key_tile + d * kAttentionSplit + t); }
  // Lanes are dims d .. d + 15.
  Lanes value(int t, int d) const { return load(value_tile + t * value_stride + d); }
};

// Needs page_size to be a multiple of 16 and head_dim one of 32. Every read also asks for what the next split will read
// at the same place: a page's block of one head is too short (2 KiB of bfloat16) for the hardware to see a stream.
template <typename Cache>
struct PageSource {
  using Storage = typename Cache::Element;
  static constexpr int kQueryStride = query_stride(kMaxHeadDim);
  static constexpr int kGroups = kAttentionSplit / 16;

  struct Split {
    const Storage* key[kGroups];  // of each group of 16 positions
    const Storage* value[kGroups];
  };
  Split now, next;
  int64_t page_size;
  int64_t head_dim;

  // Entries start + first .. start + end - 1. Groups outside read some group inside: they are computed and ignored.
  static Split locate(const KvHead& kv, int64_t start, int first, int end) {
    Split split;
    for (int g = 0; g < kGroups; ++g) {
      const int t = 16 * g >= end ? (end - 1) & ~15 : 16 * g + 15 < first ? first & ~15 : 16 * g;
      const int64_t entry = start + t, offset = entry % kv.page_size;
      const int64_t block = kv.page_table[entry / kv.page_size] * kv.page_stride;
      split.key[g] = static_cast<const Storage*>(kv.key) + block + offset;
      split.value[g] = static_cast<const Storage*>(kv.value) + block + offset * kv.head_dim;
    }
    return split;
  }

  Lanes key(int d, int t) const {
    __builtin_prefetch(next.key[t / 16] + d * page_size, 0, 2);
    return Cache::widen(now.key[t / 16] + d * page_size);
  }
  Lanes value(int t, int d) const {
    __builtin_prefetch(next.value[t / 16] + t % 16 * head_dim + d, 0, 2);
    return Cache::widen(now.value[t / 16] + t % 16 * head_dim + d);
  }
};

}  // namespace

}  // namespace eagle31rt::E31_ISA
