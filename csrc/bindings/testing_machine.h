// What this machine can do at most, to divide measured speeds by. Measured, not looked up: clocks and neighbours vary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eagle31rt {

// Reads num_bytes (a multiple of 256) from 64-byte aligned memory in the widest loads of cpu_ops(); returns a checksum.
uint32_t read_memory(const void* memory, size_t num_bytes);

}  // namespace eagle31rt
