// Draws one token id per row of logits. The law of a row is defined once, here, in integers, so that every backend
// draws the same id from the same logits:
//
//   x_i    = logits[i] / temperature          NaN and masked ids count as -inf
//   w_i    = floor(exp(x_i - max x) * 2^44)   our own exp (base/numerics.h); integers, so the order of sums is free
//   min_p  keeps w_i >= min_p * 2^44
//   top_k  keeps the k largest, ties to the lowest id
//   top_p  keeps the shortest prefix, in descending order (ties to the lowest id), with at least top_p of the mass left
//   draw   u = Philox(seed; position, kSample), 64 bits; the id is the first with cumulative w > floor(u * total / 2^64)
//
// temperature 0 is argmax, ties to the lowest id. The order of the filters is vLLM's. top_k 1 equals argmax; top_k 0 or
// >= vocab_size, top_p 1 and min_p 0 are no-ops bit for bit.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct SamplingRow {
  float temperature;  // 0 or more
  int32_t top_k;      // 0 = off
  float top_p;        // (0, 1]
  float min_p;        // [0, 1]
  uint64_t seed;      // of the request
  int64_t position;   // sequence position of the token that is drawn
};

struct SampleParams {
  const float* logits;          // [num_rows, logits_stride]; lanes past vocab_size are never chosen
  const SamplingRow* rows;      // [num_rows]
  const int32_t* masked_begin;  // [num_rows + 1] into masked_ids, or null: ids that a row must not choose
  const int32_t* masked_ids;
  int32_t* token_ids;           // [num_rows] out; -1 if no id has a finite logit
  int64_t num_rows;
  int64_t vocab_size;
  int64_t logits_stride;        // elements between rows
};

}  // namespace eagle31rt
