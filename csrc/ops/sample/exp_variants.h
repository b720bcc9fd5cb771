// The vector exp of every instruction set that is compiled in, by name; so that tests can compare it bit by bit with
// numerics::exp_float.
#pragma once

#include <cstdint>
#include <string_view>

namespace eagle31rt {

using ExpArray = void (*)(const float* x, float* y, int64_t n);

// Null if this build has no such instruction set. Whether the processor can run it is for the caller to know.
ExpArray exp_variant(std::string_view instruction_set);

}  // namespace eagle31rt
