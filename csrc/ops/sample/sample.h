// Draws one token id per row of logits. The law of a row is defined once, here, in integers, so that every backend
// draws the same id from the same logits:
//
//   m      = the largest logit              NaN and masked ids count as -inf
//   w_i    = floor(exp((logit_i - m) / temperature) * 2^44)
//            our own exp (base/numerics.h); integers, so the order of sums is free. The maximum is taken off before the
//            division, so no temperature overflows: 1e-5 is argmax unless logits differ by less than 3e-4.
//   min_p  keeps w_i >= min_p * 2^44; ids with w_i = 0 (more than 30.5 temperatures below m) are out in any case
//   top_k  keeps the k first by descending logit, ties to the lowest id
//   top_p  keeps the shortest prefix in that order whose mass is at least ceil(top_p * mass left)
//   draw   u = Philox(seed; position, purpose, noise_index), 64 bits; the id is the first whose cumulative w, in the
//          order of ids, exceeds floor(u * total / 2^64)
//
// temperature 0 is argmax, ties to the lowest id; so is a row with a logit of +inf, whatever its temperature. The order
// of the filters is vLLM's. top_k 1 equals argmax; top_k 0 or >= vocab_size, top_p 1 and min_p 0 are no-ops bit for
// bit. Logits are compared, not weights, because neighbouring floats can share a weight and argmax tells them apart.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace eagle31rt {

struct SamplingRow {
  float temperature;  // 0 or more, finite
  int32_t top_k;      // 0 = off
  float top_p;        // (0, 1]; smaller than every share = argmax
  float min_p;        // [0, 1]
  uint64_t seed;      // of the request
  int64_t position;   // sequence position of the token that is drawn
};

struct SampleParams {
  const float* logits;          // [num_rows, logits_stride]; lanes past vocab_size are never chosen
  const SamplingRow* rows;      // [num_rows]
  const int32_t* masked_begin;  // [num_rows + 1] into masked_ids, or null: ids that a row must not choose
  const int32_t* masked_ids;    // any order; ids outside the vocabulary are ignored
  int32_t* token_ids;           // [num_rows] out; -1 if no id has a logit above -inf
  int64_t num_rows;
  int64_t vocab_size;                            // 1 .. 2^20 - 1, so that a sum of weights fits 64 bits
  int64_t logits_stride;                         // elements between rows
  NoisePurpose purpose = NoisePurpose::kSample;  // kDraft draws drafts that kStandard and kBlock verify
  uint32_t noise_index = 0;     // kDraft: the draft's place in its round, from 0 (see verify_chain.h); else 0
  uint64_t* weights = nullptr;  // [num_rows, vocab_size] out or null: the law itself, w_i after every filter
};

}  // namespace eagle31rt
