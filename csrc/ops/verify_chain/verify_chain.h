// Chain verification: which drafts of a chain stand, and what is emitted (batch_correctness 3.1, 3.3, 3.5).
//
// Request i owns verify rows row_begin[i] .. row_begin[i + 1] - 1: one more than it has drafts. Row j was fed the j-th
// draft (row 0: the newest committed token) and its logits are the target's law for what follows. A draft id outside
// the vocabulary (-1: none, or refused by a grammar) ends the chain there. A request without rows is padding: it gets
// num_accepted -1 and touches nothing else; rows from row_begin[num_requests] on belong to nobody and are left alone.
//
//   kEquality   every row is sampled by the plain sampler; the walk goes on while the draft equals the sampled id.
//               Exact, and the ids are those of plain decoding.
//   kStandard   accept draft x iff u < p(x) / q(x), u in [0, 1); on the first refusal emit ~ max(p - q, 0).
//   kBlock      Sun et al. 2403.10444: the longest prefix whose coin holds, which may lie past a coin that failed.
//   kSynthetic  accept with the given conditional rates; a refusal emits the target's own sample. Not the model's
//   output.
//
// p is the integer law of ops/sample (after every filter and mask), q the draft's own law (the same code, temperature
// only) or a point mass on the draft: where draft_logits is null, at temperature 0, and where the draft's row has no
// finite law. p and q are compared as doubles (rules.h). If every draft of kStandard or kBlock stands, the bonus token
// is drawn from p of the last row; kSynthetic emits the plain sample of the row that it ends on.
//
// Where the row to emit from has no logit above -inf, the last accepted draft is the emitted token and counts as
// accepted no more: plain decoding emits these ids before it fails, and the next round begins with the row that fails.
//
// Noise is keyed by the request's seed, the position of the row, a purpose for each kind of draw (coins kAccept or
// kSynthetic; recovered and bonus tokens kResidual; drafts kDraft; plain samples kSample) and, as index, the row's
// place in its round (0 for plain samples). The place is needed: kBlock looks at coins and drafts behind the token
// where a round ends, so the next round must not meet the same numbers at the same positions.
#pragma once

#include <cstdint>

#include "ops/sample/sample.h"

namespace eagle31rt {

enum class VerifyMethod { kEquality, kStandard, kBlock, kSynthetic };

struct VerifyChainParams {
  VerifyMethod method;
  SampleParams target;             // rows, logits and masks of all verify rows; outputs and purpose are not used
  const int32_t* row_begin;        // [num_requests + 1], row_begin[0] = 0
  const int32_t* draft_token_ids;  // [num_rows], target ids: entry r + 1 is the draft proposed after row r; first of a
                                   // request unused
  const float* draft_logits;       // [num_rows, draft_logits_stride] or null; row r: the law that drew the draft after
                                   // row r (last of a request unused)
  const int32_t* draft_to_target;  // [draft_vocab_size] target id of each draft id, ascending; null: identity
  const float* acceptance_rates;   // [num_rows] kSynthetic only: conditional rate of the draft after row r
  int32_t* num_accepted;           // [num_requests] out; -1: the first row has no logit above -inf, or padding
  int32_t* emitted_token_ids;      // [num_rows] out: from row_begin[i], num_accepted[i] + 1 ids, then -1
  int64_t num_requests;
  int64_t draft_vocab_size;
  int64_t draft_logits_stride;
};

}  // namespace eagle31rt
