// The rules of process_logits.h for one logit, for CPU and CUDA alike. Static for the reason given in base/philox.h.
#pragma once

#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "ops/process_logits/process_logits.h"

namespace eagle31rt::logit_rules {

// NaN and -inf.
E31_HOST_DEVICE static inline bool stays(float logit) { return !(logit > -std::numeric_limits<float>::infinity()); }

E31_HOST_DEVICE static inline bool is_in_vocabulary(const ProcessLogitsParams& params, int32_t id) {
  return id >= 0 && id < params.vocab_size;
}

E31_HOST_DEVICE static inline void add_bias(const ProcessLogitsParams& params, const TokenBias& entry, float* logits) {
  if (!is_in_vocabulary(params, entry.token_id)) return;
  float& logit = logits[entry.token_id];
  if (!stays(logit)) logit += entry.bias;
}

// Of an id that was seen. count: c.
E31_HOST_DEVICE static inline float penalize(const ProcessRow& row, int32_t count, float logit) {
  if (stays(logit)) return logit;
  logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  logit -= row.frequency_penalty * static_cast<float>(count);
  return count > 0 ? logit - row.presence_penalty : logit;
}

struct PathMatch {
  uint64_t places;  // bit i: the id stands at place i of the path
  int32_t count;
};

E31_HOST_DEVICE static inline PathMatch find_in_path(const ProcessLogitsParams& params, const ProcessRow& row,
                                                     int32_t id) {
  PathMatch match = {0, 0};
  for (int32_t i = row.path_begin; i < row.path_end; ++i) {
    const uint64_t is_there = params.path_ids[i] == id ? 1 : 0;
    match.places |= is_there << (i - row.path_begin);
    match.count += static_cast<int32_t>(is_there);
  }
  return match;
}

// Returns the places of the path that this id of the history stands at.
E31_HOST_DEVICE static inline uint64_t penalize_seen(const ProcessLogitsParams& params, const ProcessRow& row,
                                                     const TokenCount& token, float* logits) {
  const PathMatch match = find_in_path(params, row, token.token_id);
  const int32_t count = token.num_output + match.count;
  const bool is_seen = token.in_prompt != 0 || count > 0;
  if (!is_seen || !is_in_vocabulary(params, token.token_id)) return match.places;
  logits[token.token_id] = penalize(row, count, logits[token.token_id]);
  return match.places;
}

// The id at `place` of the path, once, unless the history has it. in_history: places of ids of the history.
E31_HOST_DEVICE static inline void penalize_draft(const ProcessLogitsParams& params, const ProcessRow& row,
                                                  int32_t place, uint64_t in_history, float* logits) {
  const int32_t id = params.path_ids[row.path_begin + place];
  const PathMatch match = find_in_path(params, row, id);
  const uint64_t earlier = (uint64_t{1} << place) - 1;
  if (((in_history >> place) & 1) != 0 || (match.places & earlier) != 0 || !is_in_vocabulary(params, id)) return;
  logits[id] = penalize(row, match.count, logits[id]);
}

}  // namespace eagle31rt::logit_rules
