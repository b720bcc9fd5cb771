// Whether kEquality samples all rows before it walks, or each row when the walk gets there. The ids are the same.
#pragma once

#include <cstdint>

namespace eagle31rt::cuda {

constexpr int64_t kBlocksAtOnce = 216;    // rows that an A100 samples side by side: 108 multiprocessors, 2 blocks each
constexpr int64_t kExpectedWalkRows = 4;  // rows of a walk, one after the other; EAGLE-3 accepts 2 to 5 drafts

// Sampling all rows takes as long as the rounds of blocks that they need, walking first as long as a walk.
constexpr bool samples_all_rows(int64_t num_rows, int64_t num_requests) {
  const int64_t rounds_of_rows = (num_rows + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const int64_t rounds_of_walks = (num_requests + kBlocksAtOnce - 1) / kBlocksAtOnce;
  return rounds_of_rows <= kExpectedWalkRows * rounds_of_walks;
}

}  // namespace eagle31rt::cuda
