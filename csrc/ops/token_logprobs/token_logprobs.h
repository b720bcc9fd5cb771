// The log-probability and the rank of one given id in each row of logits: what `logprobs` reports of the token that was
// chosen.
//
//   log-probability  log softmax over the whole row at temperature 1, by the integer weights of ops/sample:
//                    (logit_id - m) - log(sum_j w_j * 2^-44), as ops/top_k has it, and the same bits: the sum is of
//                    integers, on every backend. With a logit of +inf the row is a point on the first of them: 0 there,
//                    -inf elsewhere.
//   rank             1 + the number of logits above that of the id; ties share a rank
//
// NaN counts as -inf. An id outside the vocabulary has log-probability -inf and rank 0.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct TokenLogprobsParams {
  const float* logits;       // [num_rows, logits_stride]; lanes past vocab_size are not looked at
  const int32_t* token_ids;  // [num_rows]; -1: nothing to do
  float* logprobs;           // [num_rows] out
  int32_t* ranks;            // [num_rows] out
  int64_t num_rows;
  int64_t vocab_size;     // 1 .. 2^20 - 1
  int64_t logits_stride;  // elements between rows
};

}  // namespace eagle31rt
