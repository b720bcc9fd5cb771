// Tree verification: which path of a draft tree stands, and what is emitted (batch_correctness 3.2, 3.5).
//
// Request i owns verify rows row_begin[i] .. row_begin[i + 1] - 1. Row 0 of it, the root, was fed the newest committed
// token, every other row a draft; a row's logits are the target's law for what follows its path. The children of a row
// are its first_child and that one's next siblings, in this order. Rows count from the request's first. Links ascend
// (child > parent, next sibling > sibling); one that does not ends its list, so a walk always ends. A child whose token
// is outside the vocabulary (-1: none) is not there.
//
//   kEquality  every row on the walk is sampled by the plain sampler, with the noise of its position; the walk takes
//              the child equal to the sampled id. Exact, and the ids are those of plain decoding.
//   kStandard  recursive rejection. With r = p of the row, q the law that drew its children: for each child x in order,
//              accept x iff u < r(x) / q(x); else r <- max(r - q, 0) normalised, q <- q without x normalised (drawn
//              without replacement). No child accepted: emit ~ r. A row without children: emit ~ p.
//
// p, q, points and rounding are those of ops/verify_chain: q is the draft's own law, temperature only, or a point mass
// on each child in turn (r <- r without x) where the row has no draft law, at temperature 0, and where the draft's row
// has no finite law or nothing is left of it. Of equal siblings the first counts, and of one row the first
// kMaxTriedSiblings; to try fewer children is exact as well. If nothing is left of r by rounding, the token is drawn
// from p. Exact in distribution if which nodes exist does not depend on drawn ids other than those of earlier siblings
// and ancestors: any tree for point masses (build_tree), static trees for drawn children.
//
// As in verify_chain, the last accepted draft is the emitted token where the row behind it has no logit above -inf.
//
// Noise as for chains: seed and position of a row, purpose, and the row's place as index: kSample 0; residual and bonus
// tokens (kResidual) the place of the row; coins (kAccept) position of the parent, and the place of the child - 1. So a
// chain given as a tree gets verify_chain's result bit for bit.
#pragma once

#include <cstdint>

#include "ops/sample/sample.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt {

constexpr int32_t kMaxTriedSiblings = 32;  // kStandard

enum class TreeVerifyMethod : uint8_t { kEquality, kStandard };

// The tree version of a method. Throws Error(kUnsupported) naming it if there is none.
TreeVerifyMethod tree_verify_method(VerifyMethod method);

struct VerifyTreeParams {
  TreeVerifyMethod method;
  SampleParams target;          // rows, logits and masks of all verify rows; position of a row = that of the root +
                                // depth; outputs and purpose are not used
  const int32_t* row_begin;     // [num_requests + 1], row_begin[0] = 0
  const int32_t* token_ids;     // [num_rows] target ids: the draft that the row was fed; roots unused
  const int32_t* first_child;   // [num_rows] row of the request; -1: none
  const int32_t* next_sibling;  // [num_rows]
  const float* draft_logits;    // kStandard: [any, draft_logits_stride] or null: no row has a draft law
  const int32_t* draft_rows;    // [num_rows] row of draft_logits that drew the children of the row, -1: point masses;
                                // null: the row itself
  const int32_t* draft_to_target;  // [draft_vocab_size] target id of each draft id, ascending; null: identity
  int32_t* num_accepted;           // [num_requests] out: drafts; -1: the root has no logit above -inf, or padding
  int32_t* path_rows;              // [num_rows] out: from row_begin[i], the root (0) and the num_accepted[i] accepted
                                   // rows, ascending, then -1; all -1 after a failure
  int32_t* emitted_token_ids;      // [num_rows] out: the tokens that follow the rows of the path, then -1
  int64_t num_requests;
  int64_t draft_vocab_size;
  int64_t draft_logits_stride;
};

}  // namespace eagle31rt
