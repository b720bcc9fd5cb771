// For cpu.cpp files only.
#pragma once

#include "device/cpu/simd.h"
#include "ops/sample/masked_rows.h"

namespace eagle31rt::E31_ISA {

// The logits of a row with its mask applied; `scratch` is what masked_row_scratch returned.
inline const float* row_logits(const SampleParams& params, int64_t row, float* scratch, int thread) {
  const float* logits = params.logits + row * params.logits_stride;
  if (scratch == nullptr) return logits;
  const int32_t begin = params.masked_begin[row], end = params.masked_begin[row + 1];
  if (begin == end) return logits;
  float* copy = scratch + thread * params.vocab_size;
  std::memcpy(copy, logits, static_cast<size_t>(params.vocab_size) * sizeof(float));
  for (int32_t i = begin; i < end; ++i) {
    const int32_t id = params.masked_ids[i];
    if (id >= 0 && id < params.vocab_size) copy[id] = -__builtin_inff();
  }
  return copy;
}

}  // namespace eagle31rt::E31_ISA
