// Memory that linear and fc_norm keep between calls, so that the hot path allocates nothing.
#pragma once

#include <cstdint>

namespace eagle31rt {

// At least num_floats floats, 64-byte aligned, owned by the calling thread and valid until its next call. Grows to the
// largest request and is freed when the thread ends. Throws Error(kResource) if the memory cannot be had.
float* linear_scratch(int64_t num_floats);

}  // namespace eagle31rt
