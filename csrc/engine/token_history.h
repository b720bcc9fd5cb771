// How often each id stands in a request's prompt and output, for its penalties. Derived from RequestState::tokens:
// update() counts what was committed since the last call.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/process_logits/process_logits.h"

namespace eagle31rt {

class TokenHistory {
 public:
  // tokens: prompt and output; an extension of what the last call was given. Each id once, in order of appearance.
  std::span<const TokenCount> update(std::span<const int32_t> tokens, int32_t prompt_length) {
    for (; num_counted_ < tokens.size(); ++num_counted_) {
      const int32_t id = tokens[num_counted_];
      const auto [found, is_new] = place_of_id_.try_emplace(id, counts_.size());
      if (is_new) counts_.push_back({.token_id = id, .num_output = 0, .in_prompt = 0});
      TokenCount& count = counts_[found->second];
      if (num_counted_ < static_cast<size_t>(prompt_length)) {
        count.in_prompt = 1;
      } else {
        count.num_output += 1;
      }
    }
    return counts_;
  }

 private:
  std::vector<TokenCount> counts_;
  std::unordered_map<int32_t, size_t> place_of_id_;
  size_t num_counted_ = 0;
};

}  // namespace eagle31rt
