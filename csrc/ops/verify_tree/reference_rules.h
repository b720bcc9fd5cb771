// The rules of kStandard over whole laws, coins left out: what reference.cpp compares with coins and what the tests
// integrate.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/verify_tree/verify_tree.h"

namespace eagle31rt::reference {

// The children of one row, in the order in which they are tried.
struct SiblingRules {
  std::vector<int32_t> rows;
  std::vector<double> acceptance;          // that the child stands once those before it were refused
  std::vector<uint64_t> emission_weights;  // of the token after all were refused; p if there are none
};

// May end before the last child, if nothing is left of r.
SiblingRules sibling_rules(const VerifyTreeParams& params, int64_t request, int32_t row);

}  // namespace eagle31rt::reference
