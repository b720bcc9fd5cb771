// How the CUDA rms_norm runs a row; from the hidden size alone, since the order of the sum follows from it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eagle31rt::cuda {

constexpr int kRmsNormMaxThreads = 1024;

struct RmsNormConfig {
  int num_threads;      // a power of two, 32 .. kRmsNormMaxThreads: one group of 4 elements each, if that suffices
  size_t shared_bytes;  // for the row, 0 if it does not fit
  bool row_fits;
};

constexpr RmsNormConfig choose_rms_norm_config(int64_t hidden_size) {
  constexpr size_t kMaxSharedBytes = 48 * 1024 - 512;  // without opting in; the rest is for the reduction
  const int64_t num_groups = (hidden_size + 3) / 4;
  int num_threads = 32;
  while (num_threads < kRmsNormMaxThreads && num_threads < num_groups) num_threads *= 2;
  const size_t row_bytes = static_cast<size_t>(num_groups) * 16;
  const bool row_fits = row_bytes <= kMaxSharedBytes;
  return {num_threads, row_fits ? row_bytes : 0, row_fits};
}

}  // namespace eagle31rt::cuda
