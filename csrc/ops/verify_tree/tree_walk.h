// The links, coins and outputs of one request. Static for the reason given in base/philox.h.
#pragma once

#include "base/host_device.h"
#include "ops/verify_tree/verify_tree.h"

namespace eagle31rt {

struct Tree {
  const VerifyTreeParams& params;
  int64_t first_row;  // of the request
  int32_t num_rows;
  // Of the request's rows; wherever the backend keeps them.
  const int32_t* token_ids;
  const int32_t* first_child;
  const int32_t* next_sibling;
};

E31_HOST_DEVICE static inline Tree tree_of(const VerifyTreeParams& params, int64_t request) {
  const int32_t begin = params.row_begin[request];
  return {params,
          begin,
          params.row_begin[request + 1] - begin,
          params.token_ids + begin,
          params.first_child + begin,
          params.next_sibling + begin};
}

E31_HOST_DEVICE static inline int32_t follow(const Tree& tree, const int32_t* links, int32_t row) {
  const int32_t next = links[row];
  return next > row && next < tree.num_rows ? next : -1;
}

// The child that was fed `token`, or -1.
E31_HOST_DEVICE static inline int32_t find_child(const Tree& tree, int32_t row, int32_t token) {
  int32_t child = follow(tree, tree.first_child, row);
  while (child >= 0 && tree.token_ids[child] != token) child = follow(tree, tree.next_sibling, child);
  return child;
}

// The children that kStandard tries, in order.
struct Siblings {
  int32_t count;
  int32_t rows[kMaxTriedSiblings];
};

E31_HOST_DEVICE static inline void find_siblings(const Tree& tree, int32_t row, Siblings* siblings) {
  siblings->count = 0;
  int32_t child = follow(tree, tree.first_child, row);
  for (; child >= 0 && siblings->count < kMaxTriedSiblings; child = follow(tree, tree.next_sibling, child)) {
    const int32_t token = tree.token_ids[child];
    bool counts = token >= 0 && token < tree.params.target.vocab_size;
    for (int32_t i = 0; i < siblings->count; ++i) counts = counts && tree.token_ids[siblings->rows[i]] != token;
    if (counts) siblings->rows[siblings->count++] = child;
  }
}

// Row of draft_logits that drew the children of `row`; -1: point masses.
E31_HOST_DEVICE static inline int64_t draft_row_of(const Tree& tree, int32_t row) {
  const int64_t r = tree.first_row + row;
  const bool has_law = tree.params.draft_logits != nullptr && tree.params.target.rows[r].temperature > 0.0f;
  if (!has_law) return -1;
  return tree.params.draft_rows == nullptr ? r : tree.params.draft_rows[r];
}

E31_HOST_DEVICE static inline uint64_t tree_bits(const Tree& tree, int32_t row, NoisePurpose purpose, int32_t place) {
  const SamplingRow& sampling = tree.params.target.rows[tree.first_row + row];
  return random_bits64(sampling.seed, sampling.position, purpose, static_cast<uint32_t>(place));
}

E31_HOST_DEVICE static inline uint64_t plain_bits(const Tree& tree, int32_t row) {
  return tree_bits(tree, row, NoisePurpose::kSample, 0);
}
E31_HOST_DEVICE static inline uint64_t emission_bits(const Tree& tree, int32_t row) {
  return tree_bits(tree, row, NoisePurpose::kResidual, row);
}
E31_HOST_DEVICE static inline double child_coin(const Tree& tree, int32_t row, int32_t child) {
  return unit_interval(tree_bits(tree, row, NoisePurpose::kAccept, child - 1));
}

// The outputs of a request: path_rows holds the path (root first) up to num_accepted. token < 0: there is none, so the
// last accepted draft takes its place; without any it is a failure.
E31_HOST_DEVICE static inline void emit_path(const Tree& tree, int64_t request, int32_t num_accepted, int32_t token) {
  int32_t* path = tree.params.path_rows + tree.first_row;
  int32_t* emitted = tree.params.emitted_token_ids + tree.first_row;
  if (token < 0) {
    if (num_accepted > 0) token = tree.token_ids[path[num_accepted]];
    num_accepted -= 1;
  }
  for (int32_t j = 0; j < tree.num_rows; ++j) {
    emitted[j] = j < num_accepted ? tree.token_ids[path[j + 1]] : j == num_accepted ? token : -1;
  }
  for (int32_t j = num_accepted + 1; j < tree.num_rows; ++j) path[j] = -1;
  tree.params.num_accepted[request] = num_accepted;
}

}  // namespace eagle31rt
