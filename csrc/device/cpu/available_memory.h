// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace eagle31rt {

// Bytes that new allocations can take without pushing other processes out, and within the memory limits of the control
// groups that the process is in (containers, systemd); 0 if the system does not tell. Linux only.
// root: "" for this machine; tests give a directory with proc/ and sys/ of their own.
int64_t available_memory_bytes(const std::string& root = "");

}  // namespace eagle31rt
