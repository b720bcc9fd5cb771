// E31_CHECK and friends: build an Error with a formatted message. The message says what is wrong and what to do.
#pragma once

#include <sstream>
#include <string>

#include "eagle31rt/status.h"

namespace eagle31rt {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

// Throws kInternal. Compiled once, so that operators built for one instruction set can state invariants: a template of
// theirs could become everybody's copy.
[[noreturn]] void invariant_failed(const char* condition, const char* file, int line);

}  // namespace eagle31rt

// E31_CHECK(n > 0, kInvalidArgument, "max_tokens is ", n, "; give 1 or more");
#define E31_CHECK(condition, code, ...)                                             \
  do {                                                                              \
    if (!(condition)) ::eagle31rt::fail(::eagle31rt::ErrorCode::code, __VA_ARGS__); \
  } while (false)

// A broken invariant of our own code, never a user's mistake.
#define E31_INVARIANT(condition)                                                     \
  do {                                                                               \
    if (!(condition)) ::eagle31rt::invariant_failed(#condition, __FILE__, __LINE__); \
  } while (false)
