// Data races and reads of bytes that nothing wrote. Costs nothing when Launch::checker is null.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine.h"

namespace ptxsim {

enum class Access : uint8_t { kLoad, kStore, kAtomic };

// Called by allocate(): none of these bytes is initialised.
void note_allocation(const std::byte* begin, size_t num_bytes);

}  // namespace ptxsim
