// Items of one row and up to 64 of its heads run on the pool. An item unpacks each split once, into a tile of keys with
// positions as lanes and one of values with dims as lanes, and takes its heads through both in blocks of four.
#include <cstring>

#include "device/cpu/simd.h"
#include "device/execution_context.h"
#include "ops/linear/scratch.h"
#include "ops/mla_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

constexpr int kBlock = 4;  // heads whose sums stay in registers
constexpr int kFewestHeads = 16,
              kMostHeads = 64;  // of an item; a split's unpacking costs as much as 16 heads' products
constexpr float kMinusInfinity = -__builtin_inff();

int entry_dim_of(const LatentCacheView& cache) { return cache.latent_dim + cache.rope_dim; }

int padded(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

// Scratch of one item. Heads are padded to whole blocks, dims to whole vectors.
struct Workspace {
  int key_stride, value_stride;  // floats of a query and of an output
  float *key, *value;            // [entry_dim][kAttentionSplit], [kAttentionSplit][value_stride]
  float *query, *score, *split_output, *output;
  float *max, *sum;

  Workspace(const LatentCacheView& cache, int num_heads)
      : key_stride(padded(entry_dim_of(cache), 16)), value_stride(padded(cache.latent_dim, 16)) {
    const int64_t tile = int64_t{kAttentionSplit} * (key_stride + value_stride);
    const int64_t per_head = key_stride + kAttentionSplit + 2 * value_stride + 2;
    key = linear_scratch(tile + padded(num_heads, kBlock) * per_head);
    value = key + kAttentionSplit * key_stride;
    query = value + kAttentionSplit * value_stride;
    const int heads = padded(num_heads, kBlock);
    score = query + heads * key_stride;
    split_output = score + heads * kAttentionSplit;
    output = split_output + heads * value_stride;
    max = output + heads * value_stride;
    sum = max + heads;
  }
};

struct Item {
  int64_t request, row;
  int head_begin, num_heads;
};

// Entries of a split that a row sees, in logical order: positions begin .. end - 1 of the split.
struct Positions {
  int begin = 0, end = 0;
  int64_t entry[kAttentionSplit];  // KV index by position
};

Positions visible_positions(const MlaAttentionParams& p, const Item& item, int64_t start) {
  Positions positions;
  const int64_t first = p.kv_begin[item.request] - start, length = p.kv_length[item.request];
  positions.begin = first > 0 ? static_cast<int>(first) : 0;
  const int64_t stored = length - start;
  for (; positions.end < kAttentionSplit && positions.end < stored; ++positions.end) {
    positions.entry[positions.end] = start + positions.end;
  }
  const int64_t own = item.row - p.row_begin[item.request];
  int64_t position = length;
  const auto see = [&](int64_t row) {
    if (position >= start && position < start + kAttentionSplit) positions.entry[positions.end++] = length + row;
    ++position;
  };
  if (p.ancestor_mask == nullptr) {
    position += start > length ? start - length : 0;
    for (int64_t row = position - length; row <= own && position < start + kAttentionSplit; ++row) see(row);
  } else {
    for (int word = 0; word < p.mask_words; ++word) {
      for (uint64_t bits = p.ancestor_mask[item.row * p.mask_words + word]; bits != 0; bits &= bits - 1) {
        see(64 * word + __builtin_ctzll(bits));
      }
    }
  }
  return positions;
}

int64_t visible_end(const MlaAttentionParams& p, const Item& item) {
  int64_t own = item.row - p.row_begin[item.request] + 1;
  if (p.ancestor_mask != nullptr) {
    own = 0;
    for (int w = 0; w < p.mask_words; ++w) own += __builtin_popcountll(p.ancestor_mask[item.row * p.mask_words + w]);
  }
  return p.kv_length[item.request] + own;
}

// Entries into both tiles. Lanes of positions that nobody sees keep what they hold; their scores are replaced.
template <typename Stored>
void unpack(const MlaAttentionParams& p, const Item& item, const Positions& positions, Workspace& w) {
  using Element = typename Stored::Element;
  const int entry_dim = entry_dim_of(p.cache), latent_dim = p.cache.latent_dim;
  const Element* source[kAttentionSplit];
  for (int t = positions.begin; t < positions.end; ++t) {
    const int64_t entry = positions.entry[t];
    const int64_t page = p.page_table[item.request * p.page_table_stride + entry / p.cache.page_size];
    source[t] =
        static_cast<const Element*>(p.cache.data) + (page * p.cache.page_size + entry % p.cache.page_size) * entry_dim;
    float* value = w.value + t * w.value_stride;
    int d = 0;
    for (; d + 16 <= latent_dim; d += 16) store(value + d, Stored::widen(source[t] + d));
    if (d < latent_dim) {
      Element rest[16] = {};
      std::memcpy(rest, source[t] + d, sizeof(Element) * static_cast<size_t>(latent_dim - d));
      store(value + d, Stored::widen(rest));
    }
  }
  for (int t = positions.begin / 16 * 16; t < positions.end; t += 16) {
    const int begin = positions.begin > t ? positions.begin - t : 0;
    const int end = positions.end - t < 16 ? positions.end - t : 16;
    for (int d = 0; d < entry_dim; ++d) {
      Element column[16] = {};
      for (int i = begin; i < end; ++i) column[i] = source[t + i][d];
      store(w.key + d * kAttentionSplit + t, Stored::widen(column));
    }
  }
}

// Scores of kBlock heads and the positions of 16 lanes.
void score_block(const Workspace& w, int entry_dim, const float* query, int t, float* score) {
  Lanes sum[kBlock];
  for (Lanes& s : sum) s = zero();
  for (int d = 0; d < entry_dim; ++d) {
    const Lanes key = load(w.key + d * kAttentionSplit + t);
#pragma GCC unroll 4
    for (int r = 0; r < kBlock; ++r) sum[r] = multiply_add(broadcast(query[r * w.key_stride + d]), key, sum[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kBlock; ++r) store(score + r * kAttentionSplit + t, sum[r]);
}

// Outputs of kBlock heads and 16 dims over positions begin .. end - 1.
void value_block(const Workspace& w, const Positions& positions, const float* weight, int d, float* output) {
  Lanes sum[kBlock];
  for (Lanes& s : sum) s = zero();
  for (int t = positions.begin; t < positions.end; ++t) {
    const Lanes value = load(w.value + t * w.value_stride + d);
#pragma GCC unroll 4
    for (int r = 0; r < kBlock; ++r) sum[r] = multiply_add(broadcast(weight[r * kAttentionSplit + t]), value, sum[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kBlock; ++r) store(output + r * w.value_stride + d, sum[r]);
}

float finite_or_zero(float max) { return max > kMinusInfinity ? max : 0.0f; }

// Scores of a split become weights; returns its m and l.
void softmax(float* score, const Positions& positions, float* max, float* sum) {
  const Lanes lowest = broadcast(kMinusInfinity);
  Lanes x[kAttentionSplit / 16], most = lowest;
  const int groups = padded(positions.end, 16) / 16;
  for (int g = 0; g < groups; ++g) {
    const int begin = positions.begin - 16 * g, end = positions.end - 16 * g;
    const LaneMask before = first_lanes(begin < 0 ? 0 : begin < 16 ? begin : 16);
    const LaneMask until = first_lanes(end < 16 ? end : 16);
    x[g] = select(before, lowest, select(until, load(score + 16 * g), lowest));
    most = maximum(most, x[g]);
  }
  *max = reduce_max(most);
  const Lanes shift = broadcast(finite_or_zero(*max));
  Lanes total = zero();
  for (int g = 0; g < groups; ++g) {
    const Lanes weight = exp(sub(x[g], shift));
    store(score + 16 * g, weight);
    total = add(total, weight);
  }
  *sum = reduce_add(total);
}

// Folds a head's split into its (M, L, O).
void merge(Workspace& w, int head, float split_max, float split_sum) {
  float scales[16] = {};
  const float max = w.max[head] > split_max ? w.max[head] : split_max;
  scales[0] = w.max[head] - finite_or_zero(max);
  scales[1] = split_max - finite_or_zero(max);
  store(scales, exp(load(scales)));
  const Lanes a = broadcast(scales[0]), b = broadcast(scales[1]);
  float sums[16] = {w.sum[head]};
  store(sums, multiply_add(load(sums), a, mul(broadcast(split_sum), b)));
  w.max[head] = max;
  w.sum[head] = sums[0];
  float* output = w.output + head * w.value_stride;
  const float* split_output = w.split_output + head * w.value_stride;
  for (int d = 0; d < w.value_stride; d += 16) {
    store(output + d, multiply_add(load(output + d), a, mul(load(split_output + d), b)));
  }
}

void load_queries(const MlaAttentionParams& p, const Item& item, Workspace& w) {
  const int entry_dim = entry_dim_of(p.cache);
  for (int h = 0; h < padded(item.num_heads, kBlock); ++h) {
    float* query = w.query + h * w.key_stride;
    const float* source = p.query + item.row * p.query_stride + int64_t{item.head_begin + h} * entry_dim;
    for (int d = 0; d < entry_dim; ++d) query[d] = h < item.num_heads ? source[d] * p.scale : 0.0f;
    w.max[h] = kMinusInfinity;
    w.sum[h] = 0;
    std::memset(w.output + h * w.value_stride, 0, sizeof(float) * static_cast<size_t>(w.value_stride));
  }
}

void attend_split(const MlaAttentionParams& p, const Item& item, const Positions& positions, Workspace& w) {
  const auto unpack_stored = p.cache.dtype == DType::kFloat32    ? unpack<StoredFloat32>
                             : p.cache.dtype == DType::kBFloat16 ? unpack<StoredBFloat16>
                                                                 : unpack<StoredFloat16>;
  unpack_stored(p, item, positions, w);
  for (int h = 0; h < item.num_heads; h += kBlock) {
    float* score = w.score + h * kAttentionSplit;
    for (int t = positions.begin / 16 * 16; t < positions.end; t += 16) {
      score_block(w, entry_dim_of(p.cache), w.query + h * w.key_stride, t, score);
    }
    float max[kBlock], sum[kBlock];
    for (int r = 0; r < kBlock; ++r) softmax(score + r * kAttentionSplit, positions, &max[r], &sum[r]);
    for (int d = 0; d < w.value_stride; d += 16) {
      value_block(w, positions, score, d, w.split_output + h * w.value_stride);
    }
    for (int r = 0; r < kBlock; ++r) merge(w, h + r, max[r], sum[r]);
  }
}

void attend_item(const MlaAttentionParams& p, const Item& item) {
  Workspace w(p.cache, item.num_heads);
  load_queries(p, item, w);
  const int64_t end = visible_end(p, item);
  for (int64_t start = p.kv_begin[item.request] / kAttentionSplit * kAttentionSplit; start < end;
       start += kAttentionSplit) {
    const Positions positions = visible_positions(p, item, start);
    if (positions.end > positions.begin) attend_split(p, item, positions, w);
  }
  for (int h = 0; h < item.num_heads; ++h) {
    const float inverse = 1.0f / w.sum[h];
    float* output = p.output + (item.row * p.num_heads + item.head_begin + h) * p.cache.latent_dim;
    const float* sum = w.output + h * w.value_stride;
    for (int d = 0; d < p.cache.latent_dim; ++d) output[d] = sum[d] * inverse;
  }
}

}  // namespace

void mla_attention(const MlaAttentionParams& p, ExecutionContext& context) {
  const int64_t num_rows = p.row_begin[p.num_requests];  // rows behind are padding
  int heads = kMostHeads;
  const auto blocks = [&] { return (p.num_heads + heads - 1) / heads; };
  while (heads > kFewestHeads && num_rows * blocks() < context.pool.num_threads()) heads /= 2;
  auto task = [&](int64_t index, int) {
    Item item{0, index / blocks(), static_cast<int>(index % blocks()) * heads, 0};
    while (p.row_begin[item.request + 1] <= item.row) ++item.request;
    item.num_heads = p.num_heads - item.head_begin < heads ? p.num_heads - item.head_begin : heads;
    attend_item(p, item);
  };
  context.pool.parallel_for(num_rows * blocks(), task);
}

}  // namespace eagle31rt::E31_ISA
