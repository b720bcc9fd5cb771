// top_k and top_p as cuts in the order (logit descending, id ascending), found by one block without a sort.
//
//   1. a histogram of how far each id lies below the maximum, 64 buckets to a temperature: count and mass. Evenly
//   spaced
//      in the logit rather than by its bits, so that typical logits fill hundreds of buckets and the threads of a warp
//      rarely add to the same one. All that is left of the row by a cut is one bucket.
//   2. the bucket in which the prefix ends, by a scan over the buckets
//   3. if the bucket holds more than kMaxCandidates ids (ties, high temperatures): bisection of the order within it,
//   one
//      pass over the row each, at most 52
//   4. the ids of the bucket are copied to shared memory, and each compares itself with all others: the one with which
//      the prefix ends knows it
//
// Passes over the logits: 1 for the histogram, which serves both cuts, and 1 for each cut (plus the rare ones of 3).
// Sums are of integers and orders are unique within a row, so neither atomics nor the order of the list matter.
#pragma once

#include "ops/sample/row_law.cuh"

namespace eagle31rt::cuda {

constexpr int32_t kNumBuckets = 2048;
constexpr float kBucketsPerTemperature = 64.0f;  // weights end 30.5 temperatures below the maximum: bucket 1952
constexpr int32_t kMaxCandidates = 1024;
constexpr uint64_t kNever = ~uint64_t{0};  // a target that no prefix reaches

struct Tally {
  uint64_t count, mass;

  E31_DEVICE bool reaches(const Tally& target) const { return count >= target.count || mass >= target.mass; }
  E31_DEVICE Tally operator+(const Tally& other) const { return {count + other.count, mass + other.mass}; }
  E31_DEVICE Tally operator-(const Tally& other) const { return {count - other.count, mass - other.mass}; }
};

struct Candidate {
  uint64_t order, weight;
};

struct Cut {
  uint64_t order;  // of the last id of the prefix; 0: the prefix never ends
  Tally prefix;    // what the prefix holds
  Tally all;       // what takes part
};

// 41 KiB.
struct LawShared {
  uint32_t count[kNumBuckets];
  uint32_t mass_low[kNumBuckets], mass_high[kNumBuckets];  // two words: 32-bit atomics are native in shared memory
  Candidate candidates[kMaxCandidates];
  uint64_t warp_values[kMaxWarps];
  uint64_t masses[kMaxWarps];  // of the segments of the law
  int32_t num_candidates;
  int32_t bucket;
  Tally before_bucket;
  Cut cut;

  E31_DEVICE Tally tally(int32_t b) const { return {count[b], uint64_t{mass_high[b]} << 32 | mass_low[b]}; }
  E31_DEVICE void add(int32_t b, uint64_t weight) {
    atomicAdd(&count[b], 1u);
    if (weight == 0) return;
    const uint32_t low = static_cast<uint32_t>(weight);
    const uint32_t carry = atomicAdd(&mass_low[b], low) + low < low ? 1u : 0u;
    atomicAdd(&mass_high[b], static_cast<uint32_t>(weight >> 32) + carry);
  }
};

E31_DEVICE int32_t bucket_of(float scaled) {
  return static_cast<int32_t>(fminf(-kBucketsPerTemperature * scaled, static_cast<float>(kNumBuckets - 1)));
}

// Ids take part if their logit is above -inf and their weight at least law.min_weight (which may be 0).
E31_DEVICE void fill_histogram(const RowLaw& law, const RowLogits& logits, int32_t vocab_size, LawShared& shared) {
  for (int32_t b = static_cast<int32_t>(threadIdx.x); b < kNumBuckets; b += blockDim.x) {
    shared.count[b] = shared.mass_low[b] = shared.mass_high[b] = 0;
  }
  __syncthreads();
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < vocab_size; id += blockDim.x) {
    const float logit = logits[id];
    if (!(logit > -kInfinity)) continue;
    const float scaled = scaled_logit(law, logit);
    const uint64_t weight = law::weight_of(numerics::exp_float(scaled));
    if (weight >= law.min_weight) shared.add(bucket_of(scaled), weight);
  }
  __syncthreads();
}

E31_DEVICE Tally block_tally(const Tally& own, uint64_t* warp_values) {
  return {block_sum(own.count, warp_values), block_sum(own.mass, warp_values)};
}

// Sets shared.bucket (-1: none) and shared.before_bucket; returns the tally of the whole histogram.
E31_DEVICE Tally find_bucket(const Tally& target, LawShared& shared) {
  const int32_t share = kNumBuckets / static_cast<int32_t>(blockDim.x);
  const int32_t first = static_cast<int32_t>(threadIdx.x) * share;
  Tally own = {0, 0};
  for (int32_t b = first; b < first + share; ++b) own = own + shared.tally(b);
  const BlockScan<uint64_t> count = block_exclusive_sum(own.count, shared.warp_values);
  if (threadIdx.x == 0)
    shared.bucket = -1;  // between the barriers of the scans: nobody reads it any more or sets it yet
  const BlockScan<uint64_t> mass = block_exclusive_sum(own.mass, shared.warp_values);
  Tally before = {count.before, mass.before};
  if (!before.reaches(target) && (before + own).reaches(target)) {
    int32_t b = first;
    for (; !(before + shared.tally(b)).reaches(target); ++b) before = before + shared.tally(b);
    shared.bucket = b;
    shared.before_bucket = before;
  }
  __syncthreads();
  return {count.total, mass.total};
}

// Calls body(order, weight) for the ids of one bucket whose order is in [low, high].
template <typename Body>
E31_DEVICE void for_each_candidate(const RowLaw& law, const RowLogits& logits, int32_t vocab_size, int32_t bucket,
                                   uint64_t low, uint64_t high, const Body& body) {
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < vocab_size; id += blockDim.x) {
    const float logit = logits[id];
    if (!(logit > -kInfinity)) continue;
    const float scaled = scaled_logit(law, logit);
    if (bucket_of(scaled) != bucket) continue;
    const uint64_t order = order_of(logit, id);
    if (order < low || order > high) continue;
    const uint64_t weight = law::weight_of(numerics::exp_float(scaled));
    if (weight >= law.min_weight) body(order, weight);
  }
}

// The orders among which the prefix ends, at most kMaxCandidates of them; what lies above is in `before`.
struct Interval {
  uint64_t low, high;
  Tally before;
};

E31_DEVICE Interval narrow(const RowLaw& law, const RowLogits& logits, int32_t vocab_size, const Tally& target,
                           LawShared& shared) {
  const int32_t bucket = shared.bucket;
  Interval interval = {0, ~uint64_t{0}, shared.before_bucket};
  uint64_t num_candidates = shared.count[bucket];
  if (num_candidates <= kMaxCandidates) return interval;
  uint64_t lowest = ~uint64_t{0}, highest = 0;
  for_each_candidate(law, logits, vocab_size, bucket, interval.low, interval.high, [&](uint64_t order, uint64_t) {
    lowest = min(lowest, order);
    highest = max(highest, order);
  });
  interval.low = ~block_max(~lowest, shared.warp_values);
  interval.high = block_max(highest, shared.warp_values);
  while (num_candidates > kMaxCandidates) {
    const uint64_t middle = interval.high - (interval.high - interval.low) / 2;
    Tally own = {0, 0};
    for_each_candidate(law, logits, vocab_size, bucket, middle, interval.high,
                       [&](uint64_t, uint64_t weight) { own = own + Tally{1, weight}; });
    const Tally upper = block_tally(own, shared.warp_values);
    if ((interval.before + upper).reaches(target)) {
      interval.low = middle;
      num_candidates = upper.count;
    } else {
      interval.high = middle - 1;
      interval.before = interval.before + upper;
      num_candidates -= upper.count;
    }
  }
  return interval;
}

// The shortest prefix that reaches the target, by the histogram in `shared`. Targets are 1 or more.
E31_DEVICE Cut find_cut(const RowLaw& law, const RowLogits& logits, int32_t vocab_size, const Tally& target,
                        LawShared& shared) {
  const Tally all = find_bucket(target, shared);
  if (shared.bucket < 0) return {0, all, all};
  const Interval interval = narrow(law, logits, vocab_size, target, shared);
  if (threadIdx.x == 0) shared.num_candidates = 0;
  __syncthreads();
  for_each_candidate(law, logits, vocab_size, shared.bucket, interval.low, interval.high,
                     [&shared](uint64_t order, uint64_t weight) {
                       shared.candidates[atomicAdd(&shared.num_candidates, 1)] = {order, weight};
                     });
  __syncthreads();
  const int32_t num_candidates = shared.num_candidates;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_candidates; i += blockDim.x) {
    const Candidate own = shared.candidates[i];
    Tally before = interval.before;
    for (int32_t j = 0; j < num_candidates; ++j) {
      const Candidate other = shared.candidates[j];
      if (other.order > own.order) before = before + Tally{1, other.weight};
    }
    const Tally with_own = before + Tally{1, own.weight};
    if (!before.reaches(target) && with_own.reaches(target)) shared.cut = {own.order, with_own, all};
  }
  __syncthreads();
  return shared.cut;
}

// Builds the law of one row; shared.masses is filled unless the law is a point or empty. Passes over the logits: 1 for
// the maximum and 1 for the sum, 2 more with top_k or top_p, 3 more with both.
E31_DEVICE RowLaw make_law(const RowLogits& logits, int32_t vocab_size, const SamplingRow& row, LawShared& shared) {
  const bool limits_count = row.top_k > 0 && row.top_k < vocab_size;
  const Argmax best = find_argmax(logits, vocab_size, shared.warp_values);
  RowLaw law = {best.logit, row.temperature, 1, 0, 0, -1};
  if (best.id < 0) return law;
  law.total = law::kUnitWeight;
  if (!(row.temperature > 0.0f) || best.logit == kInfinity || row.top_k == 1) {
    law.point_id = best.id;
    return law;
  }
  law.min_weight = law::min_weight(row.min_p);
  if (limits_count || row.top_p < 1.0f) {
    fill_histogram(law, logits, vocab_size, shared);
    const Tally target = {limits_count ? static_cast<uint64_t>(row.top_k) : kNever, kNever};
    Cut cut = find_cut(law, logits, vocab_size, target, shared);
    if (row.top_p < 1.0f) {
      const Tally nucleus = {kNever, law::nucleus_mass(row.top_p, cut.prefix.mass)};
      cut = find_cut(law, logits, vocab_size, nucleus, shared);
    }
    law.cut = cut.order;
  }
  law.total = sum_segments([&](int32_t id) { return weight_of(law, logits, id); }, vocab_size, shared.masses);
  return law;
}

// Draws from a law that make_law built, with the masses it left; -1 if it is empty.
E31_DEVICE int32_t draw_from_law(const RowLaw& law, const RowLogits& logits, int32_t vocab_size, const uint64_t* masses,
                                 uint64_t bits, uint64_t* warp_values) {
  if (law.total == 0 || law.point_id >= 0) return law.point_id;
  return draw_id([&](int32_t id) { return weight_of(law, logits, id); }, vocab_size, masses, law.total, bits,
                 warp_values);
}

}  // namespace eagle31rt::cuda
