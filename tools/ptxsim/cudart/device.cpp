#include "device.h"

#include <cstdlib>

namespace cudart {
namespace {

// Figures that cudaGetDeviceProperties reports on these devices, or NVIDIA's tuning guides where none was at hand.
constexpr DeviceProfile kProfiles[] = {
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 2048, 32, 65536, 166912, 167936, 41943040, 1410000, 1593000, 5120},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 2048, 32, 65536, 232448, 233472, 52428800, 1980000, 2619000, 5120},
    {"h200", "NVIDIA H200", 9, 0, 132, 2048, 32, 65536, 232448, 233472, 62914560, 1980000, 3201000, 6144},
    {"b200", "NVIDIA B200", 10, 0, 148, 2048, 32, 65536, 232448, 233472, 132644864, 1965000, 3996000, 8192},
    {"t4", "Tesla T4", 7, 5, 40, 1024, 16, 65536, 65536, 65536, 4194304, 1590000, 5001000, 256},
};

constexpr size_t kDefaultMemoryBytes = size_t{8} << 30;

}  // namespace

const DeviceProfile* find_device(const std::string& key) {
  for (const DeviceProfile& profile : kProfiles) {
    if (key == profile.key) return &profile;
  }
  return nullptr;
}

std::string device_keys() {
  std::string keys;
  for (const DeviceProfile& profile : kProfiles) keys += std::string(keys.empty() ? "" : " | ") + profile.key;
  return keys;
}

size_t device_memory_bytes() {
  const char* text = std::getenv("PTXSIM_MEMORY_BYTES");
  const size_t bytes = text ? std::strtoull(text, nullptr, 10) : 0;
  return bytes ? bytes : kDefaultMemoryBytes;
}

}  // namespace cudart
