#include "eagle31rt/status.h"

#include "base/check.h"

namespace eagle31rt {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kCheckpoint:
      return "checkpoint";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kResource:
      return "resource";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void invariant_failed(const char* condition, const char* file, int line) {
  fail(ErrorCode::kInternal, "internal error: ", condition, " at ", file, ":", line, "; please report it");
}

}  // namespace eagle31rt
