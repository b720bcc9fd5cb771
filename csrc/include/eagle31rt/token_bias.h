#pragma once

#include <cstdint>

namespace eagle31rt {

// What is added to the logit of one token id.
struct TokenBias {
  int32_t token_id;
  float bias;  // finite
};

}  // namespace eagle31rt
