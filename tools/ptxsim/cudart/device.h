// The GPU that the library pretends to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cudart {

struct DeviceProfile {
  const char* key;   // PTXSIM_DEVICE
  const char* name;  // as the driver reports it
  int major, minor;  // compute capability
  int num_multiprocessors;
  int max_threads_per_multiprocessor;
  int max_blocks_per_multiprocessor;
  int registers_per_multiprocessor;  // also the most that a block can have
  size_t shared_per_block_optin;     // bytes
  size_t shared_per_multiprocessor;  // bytes
  size_t l2_bytes;
  int clock_khz;
  int memory_clock_khz;
  int memory_bus_bits;

  int compute_capability() const { return major * 10 + minor; }
  bool has_clusters() const { return major >= 9; }
};

constexpr size_t kSharedPerBlock = 48 * 1024;     // without opting in
constexpr size_t kReservedSharedPerBlock = 1024;  // that the system takes of a multiprocessor for every block
constexpr size_t kConstantBytes = 64 * 1024;
constexpr size_t kRegistersPerBlock = 64 * 1024;
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kMaxBlockDim[3] = {1024, 1024, 64};
constexpr int kMaxGridDim[3] = {0x7fffffff, 65535, 65535};
constexpr int kWarpSize = 32;
constexpr int kVersion = 13000;  // of runtime and driver: CUDA 13.0
constexpr int kMaxPortableClusterSize = 8;

// "a100", "h100", "h200", "b200", "t4"; null if there is none of that name.
const DeviceProfile* find_device(const std::string& key);
std::string device_keys();  // "a100 | h100 | ..."

// PTXSIM_MEMORY_BYTES, 8 GiB if absent: the memory of the simulated device is the host's, so it is not the real figure.
size_t device_memory_bytes();

}  // namespace cudart
