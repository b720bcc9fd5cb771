// C++ errors as Python exceptions. The classes are those of eagle31rt.errors, so that both modules raise the same ones.
#pragma once

#include <pybind11/pybind11.h>

#include "eagle31rt/status.h"

namespace eagle31rt {

inline const char* python_error_class(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kCheckpoint:
      return "CheckpointError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kResource:
      return "ResourceError";
    case ErrorCode::kDevice:
      return "DeviceError";
    case ErrorCode::kInternal:
      return "InternalError";
  }
  return "InternalError";
}

inline void register_error_translation() {
  pybind11::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const auto errors = pybind11::module_::import("eagle31rt.errors");
      pybind11::set_error(errors.attr(python_error_class(error.code())), error.what());
    }
  });
}

}  // namespace eagle31rt
