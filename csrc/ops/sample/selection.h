// top_k and top_p as cuts in the order (logit descending, id ascending), found by radix selection on the bits of the
// logit: three histograms of 11, 11 and 10 bits, so linear in the vocabulary whatever the values, and no sort.
//
// For cpu.cpp files only.
#pragma once

#include "ops/sample/row_law.h"

namespace eagle31rt::E31_ISA {

constexpr int kRadixLevels = 3;
constexpr int kRadixShift[kRadixLevels] = {21, 10, 0};
constexpr int kRadixBuckets = 2048;

struct RadixHistogram {
  uint64_t mass[kRadixBuckets];
  uint32_t count[kRadixBuckets];
};

// The key digits above `level` must equal those of `prefix`.
inline bool matches_prefix(uint32_t key, uint32_t prefix, int level) {
  return level == 0 || ((key ^ prefix) >> kRadixShift[level - 1]) == 0;
}

inline void fill_histogram(const RowLaw& law, int level, uint32_t prefix, RadixHistogram* histogram) {
  std::memset(histogram, 0, sizeof(*histogram));
  const uint32_t digit_mask = level == kRadixLevels - 1 ? 0x3ffu : 0x7ffu;
  for (int64_t begin = 0; begin < law.vocab_size; begin += kBlock) {
    const int64_t count = begin + kBlock < law.vocab_size ? kBlock : law.vocab_size - begin;
    uint32_t keys[kBlock];
    uint32_t num_matches = 0;
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = law::ordered_key(law.logits[begin + i]);
      num_matches += matches_prefix(keys[i], prefix, level) ? 1 : 0;
    }
    if (num_matches == 0) continue;
    uint64_t weights[kBlock];
    law_weights(law, begin, count, weights);
    for (int64_t i = 0; i < count; ++i) {
      if (weights[i] == 0 || !matches_prefix(keys[i], prefix, level)) continue;
      const uint32_t digit = (keys[i] >> kRadixShift[level]) & digit_mask;
      histogram->mass[digit] += weights[i];
      ++histogram->count[digit];
    }
  }
}

struct Target {
  uint64_t count;  // the prefix ends once it has this many ids
  uint64_t mass;   // or this much mass
};

// The largest digit at which the prefix ends; takes what lies above it off the target and adds it to `above`. -1 if the
// prefix never ends.
inline int find_digit(const RadixHistogram& histogram, Target* target, uint64_t* above) {
  for (int digit = kRadixBuckets - 1; digit >= 0; --digit) {
    if (histogram.count[digit] >= target->count || histogram.mass[digit] >= target->mass) return digit;
    target->count -= histogram.count[digit];
    target->mass -= histogram.mass[digit];
    *above += histogram.mass[digit];
  }
  return -1;
}

// The id of the n-th (from 1) candidate with this key.
inline int64_t find_tie(const RowLaw& law, uint32_t key, uint64_t n) {
  int64_t id = -1;
  while (n > 0) {
    ++id;
    if (law::ordered_key(law.logits[id]) == key && weight_at(law, id) > 0) --n;
  }
  return id;
}

// Cuts the law to the shortest prefix that reaches the target and returns its mass. `first` is the level-0 histogram of
// the law before any cut, which holds for every cut; `scratch` is overwritten. The target's count and mass are 1 or
// more.
inline uint64_t cut_prefix(RowLaw* law, Target target, const RadixHistogram& first, RadixHistogram* scratch) {
  uint64_t above = 0;
  uint32_t prefix = 0;
  int digit = find_digit(first, &target, &above);
  if (digit < 0) return above;
  prefix = static_cast<uint32_t>(digit) << kRadixShift[0];
  for (int level = 1; level < kRadixLevels; ++level) {
    fill_histogram(*law, level, prefix, scratch);
    digit = find_digit(*scratch, &target, &above);
    prefix |= static_cast<uint32_t>(digit) << kRadixShift[level];
  }
  // Equal logits have equal weights.
  const uint64_t weight = scratch->mass[digit] / scratch->count[digit];
  const uint64_t mass_ties = (target.mass - 1) / weight + 1;
  const uint64_t num_ties = target.count < mass_ties ? target.count : mass_ties;
  law->cut_id = find_tie(*law, prefix, num_ties);
  law->cut_logit = law->logits[law->cut_id];
  law->filtered = true;
  return above + num_ties * weight;
}

// Applies top_k, then top_p of what is left.
inline void apply_prefix_filters(RowLaw* law, const SamplingRow& row) {
  constexpr uint64_t kNever = ~uint64_t{0};
  RadixHistogram first, scratch;
  fill_histogram(*law, 0, 0, &first);
  uint64_t mass = 0;
  if (row.top_k > 0 && row.top_k < law->vocab_size) {
    mass = cut_prefix(law, {static_cast<uint64_t>(row.top_k), kNever}, first, &scratch);
  } else {
    for (int digit = 0; digit < kRadixBuckets; ++digit) mass += first.mass[digit];
  }
  if (row.top_p < 1.0f) cut_prefix(law, {kNever, law::nucleus_mass(row.top_p, mass)}, first, &scratch);
}

// Builds the law of one row; block_masses [kMaxBlocks] is filled unless the law is a point or empty.
inline RowLaw make_law(const float* logits, int64_t vocab_size, const SamplingRow& row, uint64_t* block_masses) {
  const Argmax best = find_argmax(logits, vocab_size);
  RowLaw law = {logits,     vocab_size, best.logit, row.temperature, false, law::min_weight(row.min_p), -kInfinity,
                vocab_size, -1,         0};
  if (best.id < 0) return law;
  law.total = law::kUnitWeight;
  if (!(row.temperature > 0.0f) || best.logit == kInfinity || row.top_k == 1) {
    law.point_id = best.id;
    return law;
  }
  law.filtered = law.min_weight > 1;
  const bool cuts = (row.top_k > 0 && row.top_k < vocab_size) || row.top_p < 1.0f;
  if (cuts) apply_prefix_filters(&law, row);
  law.total =
      sum_blocks([&law](int64_t first_id, int64_t count, uint64_t* out) { law_weights(law, first_id, count, out); },
                 vocab_size, block_masses);
  return law;
}

// Draws from a law that make_law built; -1 if it is empty.
inline int64_t draw_from_law(const RowLaw& law, const uint64_t* block_masses, uint64_t bits) {
  if (law.total == 0 || law.point_id >= 0) return law.point_id;
  return draw_id([&law](int64_t first_id, int64_t count, uint64_t* out) { law_weights(law, first_id, count, out); },
                 law.vocab_size, block_masses, law.total, bits);
}

}  // namespace eagle31rt::E31_ISA
