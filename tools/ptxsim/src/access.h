// The way of a warp's addresses to host memory: state spaces, bounds and alignment, counters, checker.
#pragma once

#include "checker.h"
#include "machine.h"

namespace ptxsim {

constexpr size_t kSharedWindowBytes = size_t{1}
                                      << 20;  // host addresses that generic pointers to shared memory may have

// Base register plus immediate, for all 32 lanes.
void gather_addresses(Warp& warp, const Instruction& instruction, uint64_t* addresses);

// Checks an access of `bytes` (a power of two) by the lanes of `mask` in the instruction's space, reports it to
// counters and checker, and replaces their addresses by host addresses. Throws Fault("out-of-bounds" | "misaligned" |
// ...).
void resolve(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes, uint64_t* addresses);

// The same for a given space, with offsets in shared memory or host addresses.
void resolve_shared(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                    uint64_t* addresses);
void resolve_global(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                    const uint64_t* addresses);

// The space a generic address is in.
Space classify(const Warp& warp, uint64_t address);

}  // namespace ptxsim
