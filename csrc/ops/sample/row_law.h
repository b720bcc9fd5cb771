// The law of one row (sample.h) as a function id -> integer weight, evaluated block by block from the logits. Nothing
// of vocabulary size is stored: a filter is a cut in the order (logit descending, id ascending), and a weight is
// recomputed where it is needed (0.5 ns each with AVX-512), which is cheaper than a second array that falls out of the
// first-level cache.
//
// For cpu.cpp files only.
#pragma once

#include "device/cpu/simd.h"
#include "ops/sample/law.h"
#include "ops/sample/sample.h"

namespace eagle31rt::E31_ISA {

constexpr int64_t kBlock = 512;  // ids per block; the split is fixed, but integer sums would not mind another
constexpr int64_t kMaxBlocks = law::kMaxVocabSize / kBlock + 1;

struct RowLaw {
  const float* logits;  // [vocab_size]
  int64_t vocab_size;
  float max_logit;
  float temperature;
  bool filtered;        // some of the next three cuts
  uint64_t min_weight;  // kept: weight >= min_weight
  float cut_logit;      // kept: logit > cut_logit, or equal and id <= cut_id
  int64_t cut_id;
  int64_t point_id;  // >= 0: all mass on this id
  uint64_t total;    // 0: no id has a logit above -inf
};

constexpr float kInfinity = __builtin_inff();

// 16 logits; lanes from n on are -inf. n >= 1, and may exceed 16.
inline Lanes load_logits(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  return select(first_lanes(static_cast<int>(n)), load_partial(p, static_cast<int>(n)), broadcast(-kInfinity));
}

struct Argmax {
  int64_t id;  // -1: no logit above -inf
  float logit;
};

// Ties to the lowest id; maximum() drops NaN.
inline Argmax find_argmax(const float* logits, int64_t vocab_size) {
  Argmax best = {-1, -kInfinity};
  int64_t best_block = -1;
  for (int64_t begin = 0; begin < vocab_size; begin += kBlock) {
    const int64_t end = begin + kBlock < vocab_size ? begin + kBlock : vocab_size;
    Lanes first = broadcast(-kInfinity), second = first;
    int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      first = maximum(load(logits + i), first);
      second = maximum(load(logits + i + 16), second);
    }
    for (; i < end; i += 16) first = maximum(load_logits(logits + i, end - i), first);
    const float block_max = reduce_max(maximum(first, second));
    if (block_max > best.logit) {
      best.logit = block_max;
      best_block = begin;
    }
  }
  if (best_block < 0) return best;
  best.id = best_block;
  while (logits[best.id] != best.logit) ++best.id;
  return best;
}

// Weights of `count` ids from first_id, before the filters; `logits` points at the first of them. Writes whole groups
// of 16; lanes past count get 0.
inline void unfiltered_weights(const RowLaw& law, const float* logits, int64_t count, uint64_t* out) {
  const Lanes max_logit = broadcast(law.max_logit);
  const Lanes temperature = broadcast(law.temperature);
  for (int64_t i = 0; i < count; i += 16) {
    float e[16];
    store(e, exp(div(sub(load_logits(logits + i, count - i), max_logit), temperature)));
    for (int lane = 0; lane < 16; ++lane) out[i + lane] = law::weight_of(e[lane]);
  }
}

// The sum of all weights at temperature 1, before the filters.
inline uint64_t total_mass(const float* logits, int64_t vocab_size, float max_logit) {
  RowLaw law = {};
  law.max_logit = max_logit;
  law.temperature = 1.0f;
  uint64_t total = 0;
  for (int64_t begin = 0; begin < vocab_size; begin += kBlock) {
    const int64_t count = vocab_size - begin < kBlock ? vocab_size - begin : kBlock;
    uint64_t weights[kBlock];
    unfiltered_weights(law, logits + begin, count, weights);
    for (int64_t i = 0; i < count; ++i) total += weights[i];
  }
  return total;
}

// Weights of ids first_id .. first_id + count - 1 into out[kBlock]; count <= kBlock.
inline void law_weights(const RowLaw& law, int64_t first_id, int64_t count, uint64_t* out) {
  if (law.point_id >= 0 || law.total == 0) {
    for (int64_t i = 0; i < count; ++i) out[i] = first_id + i == law.point_id ? law.total : 0;
    return;
  }
  const float* logits = law.logits + first_id;
  unfiltered_weights(law, logits, count, out);
  if (!law.filtered) return;
  for (int64_t i = 0; i < count; ++i) {
    const bool kept = logits[i] > law.cut_logit || (logits[i] == law.cut_logit && first_id + i <= law.cut_id);
    out[i] = kept && out[i] >= law.min_weight ? out[i] : 0;
  }
}

inline uint64_t weight_at(const RowLaw& law, int64_t id) {
  if (id < 0 || id >= law.vocab_size) return 0;
  uint64_t weights[16];
  law_weights(law, id, 1, weights);
  return weights[0];
}

// Sums of any weights(first_id, count, out[kBlock]) by block; returns the total.
template <typename Weights>
uint64_t sum_blocks(const Weights& weights, int64_t vocab_size, uint64_t* block_masses) {
  uint64_t total = 0;
  uint64_t block[kBlock];
  for (int64_t begin = 0; begin < vocab_size; begin += kBlock) {
    const int64_t count = begin + kBlock < vocab_size ? kBlock : vocab_size - begin;
    weights(begin, count, block);
    uint64_t mass = 0;
    for (int64_t i = 0; i < count; ++i) mass += block[i];
    block_masses[begin / kBlock] = mass;
    total += mass;
  }
  return total;
}

// The id whose cumulative weight first exceeds bits * total / 2^64. total > 0, as sum_blocks left it.
template <typename Weights>
int64_t draw_id(const Weights& weights, int64_t vocab_size, const uint64_t* block_masses, uint64_t total,
                uint64_t bits) {
  uint64_t rest = law::draw_threshold(bits, total);
  int64_t block = 0;
  while (rest >= block_masses[block]) rest -= block_masses[block++];
  const int64_t begin = block * kBlock;
  uint64_t ids[kBlock];
  weights(begin, begin + kBlock < vocab_size ? kBlock : vocab_size - begin, ids);
  int64_t i = 0;
  while (rest >= ids[i]) rest -= ids[i++];
  return begin + i;
}

}  // namespace eagle31rt::E31_ISA
