// The one error type of the runtime.
//
// Errors are raised at the edge (loading, submitting), carry a code that a binding maps to an exception class of its
// language, say what is wrong with names and values, and end with what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace eagle31rt {

enum class ErrorCode {
  kInvalidArgument,  // a parameter or a prompt is wrong: Python ValueError
  kCheckpoint,       // a checkpoint or its config is broken or does not match: Python ValueError
  kUnsupported,      // valid, but this build or version cannot do it: Python NotImplementedError
  kResource,         // memory, KV pages or threads could not be had: Python RuntimeError
  kDevice,           // an accelerator is missing, too old or failed: Python RuntimeError
  kInternal,         // a broken invariant; please report it: Python RuntimeError
};

const char* error_code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace eagle31rt
