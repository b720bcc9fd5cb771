// The k largest logits of each row with their ids and log-probabilities; what a draft tree grows from (its cumulative
// scores are sums of these log-probabilities, built elsewhere).
//
//   order             logit descending, ties to the lowest id; -0 and +0 are equal
//   left out          NaN and -inf: if fewer than k ids remain, the places behind hold id -1, value and log-probability
//                     -inf
//   log-probability   log softmax over the whole row at temperature 1, before any filter:
//                     (logit_i - m) - log(sum_j w_j * 2^-44), m the largest logit and w_j the integer weights of
//                     ops/sample (temperature 1), log our own (base/numerics.h). The sum is of integers, so every
//                     backend gives the same bits. With a logit of +inf the row is a point on the first of them: 0
//                     there, -inf elsewhere.
#pragma once

#include <cstdint>

namespace eagle31rt {

constexpr int32_t kMaxTopK = 64;

struct TopKParams {
  const float* logits;             // [num_rows, logits_stride]; lanes past vocab_size are not looked at
  const int32_t* draft_to_target;  // [vocab_size] what ids are reported as, or null: themselves
  float* values;                   // [num_rows, k] out
  int32_t* token_ids;              // [num_rows, k] out
  float* log_probabilities;        // [num_rows, k] out, or null
  int64_t num_rows;
  int64_t vocab_size;     // 1 .. 2^20 - 1
  int64_t logits_stride;  // elements between rows
  int32_t k;              // 1 .. kMaxTopK; may exceed vocab_size
};

}  // namespace eagle31rt
