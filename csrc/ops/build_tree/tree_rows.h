// What all backends share: the order of candidates as an integer, and on the host the rows of a choice. Static for the
// reason given in base/philox.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "ops/build_tree/build_tree.h"
#include "ops/sample/law.h"

namespace eagle31rt {

constexpr uint32_t kNeverChosen = 0xff800000u;  // the key of -inf; NaN and broken links get it too

// Ascends as the score descends.
E31_HOST_DEVICE static inline uint32_t score_key(float score) {
  return score != score ? kNeverChosen : ~law::ordered_key(score);
}

// Of parent and child: the one whose score is less.
E31_HOST_DEVICE static inline uint32_t later_key(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Orders candidates by score, ties to the lower one; unique.
E31_HOST_DEVICE static inline uint64_t candidate_key(uint32_t key, int32_t candidate) {
  return (uint64_t{key} << 32) | static_cast<uint32_t>(candidate);
}

E31_HOST_DEVICE static inline bool can_be_chosen(uint64_t candidate_key) {
  return static_cast<uint32_t>(candidate_key >> 32) < kNeverChosen;
}

// The candidates and rows of a request, within the limits.
struct TreeShape {
  int32_t num_candidates;
  int32_t num_rows;
};

E31_HOST_DEVICE static inline TreeShape tree_shape(const BuildTreeParams& params, int64_t request) {
  const int32_t candidates = params.candidate_begin[request + 1] - params.candidate_begin[request];
  const int32_t rows = params.row_begin[request + 1] - params.row_begin[request];
  return {candidates < kMaxTreeCandidates ? candidates : kMaxTreeCandidates, rows < kMaxTreeRows ? rows : kMaxTreeRows};
}

// Keys of all candidates of a request.
static inline void candidate_keys(const BuildTreeParams& params, int64_t request, uint64_t* keys) {
  const int32_t begin = params.candidate_begin[request];
  for (int32_t c = 0; c < tree_shape(params, request).num_candidates; ++c) {
    const int32_t parent = params.parents[begin + c];
    uint32_t key = score_key(params.scores[begin + c]);
    if (parent < -1 || parent >= c) key = kNeverChosen;
    if (parent >= 0 && parent < c) key = later_key(key, static_cast<uint32_t>(keys[parent] >> 32));
    keys[c] = candidate_key(key, c);
  }
}

// Writes the rows of a request; chosen[0 .. num_nodes - 1] are candidates in the order of their rows.
static inline void write_tree_rows(const BuildTreeParams& params, int64_t request, const int32_t* chosen,
                                   int32_t num_nodes) {
  const int32_t num_rows = tree_shape(params, request).num_rows;
  const int64_t rows = params.row_begin[request], candidates = params.candidate_begin[request];
  int32_t row_of[kMaxTreeCandidates];  // of each candidate that is chosen
  params.num_nodes[request] = num_nodes;
  for (int32_t r = 0; r < num_rows; ++r) {
    const bool is_node = r >= 1 && r <= num_nodes;
    const int32_t candidate = is_node ? chosen[r - 1] : -1;
    const int32_t parent_candidate = is_node ? params.parents[candidates + candidate] : -1;
    const int32_t parent = !is_node ? -1 : parent_candidate < 0 ? 0 : row_of[parent_candidate];
    if (is_node) row_of[candidate] = r;
    params.row_token_ids[rows + r] =
        is_node ? params.token_ids[candidates + candidate] : params.root_token_ids[request];
    params.row_candidates[rows + r] = candidate;
    params.row_parents[rows + r] = parent;
    params.first_child[rows + r] = params.next_sibling[rows + r] = -1;
    params.depths[rows + r] = is_node ? params.depths[rows + parent] + 1 : 0;
    uint64_t* mask = params.ancestor_mask + (rows + r) * params.mask_words;
    for (int32_t word = 0; word < params.mask_words; ++word) {
      mask[word] = is_node ? params.ancestor_mask[(rows + parent) * params.mask_words + word] : 0;
      if (word == r / 64) mask[word] |= uint64_t{1} << (r % 64);
    }
  }
  for (int32_t r = num_nodes; r >= 1; --r) {  // descending, so that lists ascend
    const int64_t parent = rows + params.row_parents[rows + r];
    params.next_sibling[rows + r] = params.first_child[parent];
    params.first_child[parent] = r;
  }
}

}  // namespace eagle31rt
