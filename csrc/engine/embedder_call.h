// Calls of what embedders implement: whatever they throw becomes an Error that names them, and ends one request.
#pragma once

#include <exception>
#include <string>

#include "base/check.h"

namespace eagle31rt {

template <typename Call>
auto call_embedder(const std::string& name, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    fail(ErrorCode::kInvalidArgument, name, " failed: ", error.what());
  } catch (...) {
    fail(ErrorCode::kInvalidArgument, name, " failed");
  }
}

}  // namespace eagle31rt
