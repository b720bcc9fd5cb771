// Dynamic draft trees (EAGLE-2, EAGLE-3): the best of all scored candidates of a request, flattened into the rows that
// the target verifies.
//
// Request i has candidates candidate_begin[i] .. candidate_begin[i + 1] - 1, in any order in which parents come before
// their children, each with the cumulative log-probability of its path. It owns rows row_begin[i] .. row_begin[i + 1] -
// 1: row 0, the root, is the newest committed token; the others are filled with candidates.
//
//   score  that of the candidate, or of its parent if that is less, so that every choice holds the parents of its
//          members; NaN and -inf, a parent that is not before its child, and all below such a candidate are never
//          chosen
//   choice the num_rows - 1 highest scores, ties to the lower candidate
//   order  kByScore: rows by descending score, ties to the lower candidate, so that the first m rows of a tree are the
//          tree of m rows; kByCandidate: rows by ascending candidate (SGLang, SafeAILab). Parents come first in both.
//   links  first_child[r] and next_sibling[r] ascend; so siblings descend in score with kByScore, and with kByCandidate
//          if the candidates do
//   mask   bit b of a row's mask: row b is the row itself or an ancestor (paged_attention.h)
//
// Fewer candidates than rows: the rows left over repeat the root's token at depth 0, see themselves only, and no link
// leads to them. All row numbers are relative to the request's first row. Integers throughout after the comparison of
// scores, so every backend gives the same bytes.
#pragma once

#include <cstdint>

namespace eagle31rt {

// Of one request; what lies past these is not looked at, so whoever configures trees checks them. EAGLE's largest
// setting (top 10, depth 10) has 1010 candidates.
constexpr int32_t kMaxTreeCandidates = 1024;
constexpr int32_t kMaxTreeRows = 256;

enum class TreeOrder : uint8_t { kByScore, kByCandidate };

struct BuildTreeParams {
  const float* scores;       // [num_candidates] cumulative log-probability
  const int32_t* parents;    // [num_candidates] candidate of the same request, relative to its first; -1: the root
  const int32_t* token_ids;  // [num_candidates]
  const int32_t* candidate_begin;  // [num_requests + 1]
  const int32_t* root_token_ids;   // [num_requests]
  const int32_t* row_begin;        // [num_requests + 1]; no row: padding, 0 nodes and nothing else
  int32_t* num_nodes;              // [num_requests] out: rows that hold candidates
  int32_t* row_token_ids;          // [num_rows] out
  int32_t* row_candidates;         // [num_rows] out: candidate, relative to the request's first; -1: root, left over
  int32_t* row_parents;            // [num_rows] out: -1 as above
  int32_t* first_child;            // [num_rows] out: -1: none
  int32_t* next_sibling;           // [num_rows] out: -1: none
  int32_t* depths;                 // [num_rows] out: 0 for the root; position = that of the root + depth
  uint64_t* ancestor_mask;         // [num_rows, mask_words] out, word 0 first
  int64_t num_requests;
  int32_t mask_words;  // 64 * mask_words is at least the rows of any request
  TreeOrder order;
};

}  // namespace eagle31rt
