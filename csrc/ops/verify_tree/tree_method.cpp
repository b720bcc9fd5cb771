#include "base/check.h"
#include "ops/verify_tree/verify_tree.h"

namespace eagle31rt {

TreeVerifyMethod tree_verify_method(VerifyMethod method) {
  if (method == VerifyMethod::kEquality) return TreeVerifyMethod::kEquality;
  if (method == VerifyMethod::kStandard) return TreeVerifyMethod::kStandard;
  const char* name = method == VerifyMethod::kBlock ? "block" : "synthetic";
  fail(ErrorCode::kUnsupported, "rejection_sample_method \"", name,
       "\" verifies chains only; draft trees need \"equality\" or \"standard\"");
}

}  // namespace eagle31rt
