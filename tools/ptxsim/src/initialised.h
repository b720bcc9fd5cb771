#pragma once

#include <cstddef>

namespace ptxsim {

// True if something wrote each of these bytes of device memory since they were allocated.
bool is_initialised(const std::byte* pointer, size_t num_bytes);

}  // namespace ptxsim
