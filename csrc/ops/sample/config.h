// Width of the blocks that work on rows of logits; from the vocabulary alone. All sums there are integers, so the width
// has no say in the result.
#pragma once

#include <cstdint>

namespace eagle31rt::cuda {

constexpr int kLogitsMaxThreads = 1024;

// A power of two: about 16 ids a thread, 4 of them in flight at once. 128256 ids: 1024 threads, 126 ids each.
constexpr int choose_logits_threads(int64_t vocab_size) {
  int num_threads = 128;
  while (num_threads < kLogitsMaxThreads && 16 * num_threads < vocab_size) num_threads *= 2;
  return num_threads;
}

}  // namespace eagle31rt::cuda
