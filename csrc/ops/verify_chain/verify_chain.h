// Chain verification: which drafts of a chain stand, and what is emitted (batch_correctness 3.1, 3.3, 3.5).
//
// Request i owns verify rows row_begin[i] .. row_begin[i + 1] - 1: one more than it has drafts. Row j was fed the j-th
// draft (row 0: the newest committed token) and its logits are the target's law for what follows.
//
//   kEquality   every row is sampled by the plain sampler; the walk goes on while the draft equals the sampled id.
//               Exact, and the ids are those of plain decoding.
//   kStandard   accept draft x iff u * q(x) < p(x); on the first refusal emit ~ max(p - q, 0).
//   kBlock      Sun et al. 2403.10444.
//   kSynthetic  accept with the given conditional rates; a refusal emits the target's own sample. Not the model's output.
//
// p is the integer law of ops/sample (after every filter and mask), q the draft's own law (temperature only) or a point
// mass where draft_logits is null. Coins, residual draws and drafts use separate Philox purposes.
#pragma once

#include <cstdint>

#include "ops/sample/sample.h"

namespace eagle31rt {

enum class VerifyMethod { kEquality, kStandard, kBlock, kSynthetic };

struct VerifyChainParams {
  VerifyMethod method;
  SampleParams target;               // rows, logits and masks of all verify rows; token_ids is not used
  const int32_t* row_begin;          // [num_requests + 1]
  const int32_t* draft_token_ids;    // [num_rows]: entry r + 1 is the draft proposed after row r; first of a request unused
  const float* draft_logits;         // [num_rows, draft_logits_stride] or null; row r: the law that drew the draft after row r
  const int32_t* draft_to_target;    // [draft_vocab_size] target id of each draft id, ascending; null: identity
  const float* acceptance_rates;     // [num_rows] kSynthetic only: conditional rate of the draft after row r
  int32_t* num_accepted;             // [num_requests] out; -1: some row needed has no finite logit
  int32_t* emitted_token_ids;        // [num_rows] out: from row_begin[i], num_accepted[i] + 1 ids
  int64_t num_requests;
  int64_t draft_vocab_size;
  int64_t draft_logits_stride;
};

}  // namespace eagle31rt
