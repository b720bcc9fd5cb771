// The coins of one request, and which of its drafts count. Static for the reason given in base/philox.h.
#pragma once

#include "base/host_device.h"
#include "ops/verify_chain/verify_chain.h"

namespace eagle31rt {

// A request without rows: it pads a batch of fixed size.
E31_HOST_DEVICE static inline bool is_padding(const VerifyChainParams& params, int64_t request) {
  return params.row_begin[request] == params.row_begin[request + 1];
}

// Drafts before the first id that is outside the vocabulary.
E31_HOST_DEVICE static inline int64_t num_valid_drafts(const VerifyChainParams& params, int64_t request) {
  const int64_t begin = params.row_begin[request], last = params.row_begin[request + 1] - 1;
  int64_t r = begin;
  while (r < last && params.draft_token_ids[r + 1] >= 0 && params.draft_token_ids[r + 1] < params.target.vocab_size)
    ++r;
  return r - begin;
}

// Noise of the row `place` rows after the request's first.
E31_HOST_DEVICE static inline uint64_t verify_bits(const VerifyChainParams& params, int64_t request, int64_t place,
                                                   NoisePurpose purpose) {
  const SamplingRow& row = params.target.rows[params.row_begin[request] + place];
  return random_bits64(row.seed, row.position, purpose, static_cast<uint32_t>(place));
}

E31_HOST_DEVICE static inline double verify_coin(const VerifyChainParams& params, int64_t request, int64_t place,
                                                 NoisePurpose purpose) {
  return unit_interval(verify_bits(params, request, place, purpose));
}

// Writes the accepted drafts, the token after them and -1 behind. token < 0: there is none, so the last accepted draft
// takes its place; without any it is a failure.
E31_HOST_DEVICE static inline void emit_tokens(const VerifyChainParams& params, int64_t request, int64_t num_accepted,
                                               int32_t token) {
  const int64_t begin = params.row_begin[request], num_rows = params.row_begin[request + 1] - begin;
  if (token < 0) {
    if (num_accepted > 0) token = params.draft_token_ids[begin + num_accepted];
    num_accepted -= 1;
  }
  for (int64_t j = 0; j < num_rows; ++j) {
    const int64_t r = begin + j;
    params.emitted_token_ids[r] = j < num_accepted ? params.draft_token_ids[r + 1] : j == num_accepted ? token : -1;
  }
  params.num_accepted[request] = static_cast<int32_t>(num_accepted);
}

}  // namespace eagle31rt
