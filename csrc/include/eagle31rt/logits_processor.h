// Changes the logits of one row on the host, before everything else does (order: sampling_params.h). Embedders
// implement it.
#pragma once

#include <cstdint>
#include <span>

namespace eagle31rt {

class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  // Called for every row from which a token may be drawn, those behind drafts included, so it must depend on its
  // arguments only. prompt: the request's. output: ids generated so far, then the drafts before this row. logits
  // [vocab_size], in place; NaN counts as -inf. An exception ends that request with FinishReason::kError.
  virtual void apply(std::span<const int32_t> prompt, std::span<const int32_t> output, std::span<float> logits) = 0;
};

}  // namespace eagle31rt
