// How one request is sampled and when it ends. Names and meaning are vLLM's.
#pragma once

#include <cstdint>
#include <vector>

namespace eagle31rt {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy, ties to the lowest id
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  uint64_t seed = 0;         // the same seed gives the same ids, whatever else runs
  int32_t max_tokens = 16;   // 1 or more; also bounded by the engine's max_model_len
  int32_t min_tokens = 0;    // end-of-sequence and stop ids cannot be drawn before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int32_t num_speculative_tokens = -1;  // upper bound for this request; -1 = the engine's, 0 = plain decoding
};

// Throws Error(kInvalidArgument) naming the field.
void check_sampling_params(const SamplingParams& params, int32_t vocab_size);

}  // namespace eagle31rt
