#include "device_properties.h"

#include <cstdio>
#include <cstring>
#include <map>

namespace cudart {
namespace {

constexpr int kCopyEngines = 3;

int reserved_shared(const DeviceProfile& device) {
  return device.major >= 8 ? static_cast<int>(kReservedSharedPerBlock) : 0;
}

std::map<cudaDeviceAttr, int> numbers(const DeviceProfile& device) {
  return {
      {cudaDevAttrMaxThreadsPerBlock, kMaxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, kMaxBlockDim[0]},
      {cudaDevAttrMaxBlockDimY, kMaxBlockDim[1]},
      {cudaDevAttrMaxBlockDimZ, kMaxBlockDim[2]},
      {cudaDevAttrMaxGridDimX, kMaxGridDim[0]},
      {cudaDevAttrMaxGridDimY, kMaxGridDim[1]},
      {cudaDevAttrMaxGridDimZ, kMaxGridDim[2]},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(kSharedPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(device.shared_per_block_optin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(device.shared_per_multiprocessor)},
      {cudaDevAttrReservedSharedMemoryPerBlock, reserved_shared(device)},
      {cudaDevAttrTotalConstantMemory, static_cast<int>(kConstantBytes)},
      {cudaDevAttrWarpSize, kWarpSize},
      {cudaDevAttrMaxRegistersPerBlock, static_cast<int>(kRegistersPerBlock)},
      {cudaDevAttrMaxRegistersPerMultiprocessor, device.registers_per_multiprocessor},
      {cudaDevAttrMultiProcessorCount, device.num_multiprocessors},
      {cudaDevAttrMaxThreadsPerMultiProcessor, device.max_threads_per_multiprocessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, device.max_blocks_per_multiprocessor},
      {cudaDevAttrClockRate, device.clock_khz},
      {cudaDevAttrMemoryClockRate, device.memory_clock_khz},
      {cudaDevAttrGlobalMemoryBusWidth, device.memory_bus_bits},
      {cudaDevAttrL2CacheSize, static_cast<int>(device.l2_bytes)},
      {cudaDevAttrComputeCapabilityMajor, device.major},
      {cudaDevAttrComputeCapabilityMinor, device.minor},
      {cudaDevAttrAsyncEngineCount, kCopyEngines},
      {cudaDevAttrClusterLaunch, device.has_clusters()},
  };
}

bool is_supported(cudaDeviceAttr name) {
  switch (name) {
    case cudaDevAttrPciBusId:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrEccEnabled:
      return true;
    default:
      return false;
  }
}

}  // namespace

int attribute(const DeviceProfile& device, cudaDeviceAttr name) {
  const std::map<cudaDeviceAttr, int> known = numbers(device);
  const auto found = known.find(name);
  return found == known.end() ? is_supported(name) : found->second;
}

cudaDeviceProp properties(const DeviceProfile& device) {
  cudaDeviceProp result = {};
  std::snprintf(result.name, sizeof(result.name), "%s", device.name);
  std::memcpy(result.uuid.bytes, "ptxsim device 0", sizeof(result.uuid.bytes));
  result.totalGlobalMem = device_memory_bytes();
  result.sharedMemPerBlock = kSharedPerBlock;
  result.sharedMemPerBlockOptin = device.shared_per_block_optin;
  result.sharedMemPerMultiprocessor = device.shared_per_multiprocessor;
  result.reservedSharedMemPerBlock = static_cast<size_t>(reserved_shared(device));
  result.regsPerBlock = static_cast<int>(kRegistersPerBlock);
  result.regsPerMultiprocessor = device.registers_per_multiprocessor;
  result.warpSize = kWarpSize;
  result.memPitch = 0x7fffffff;
  result.maxThreadsPerBlock = kMaxThreadsPerBlock;
  for (int i = 0; i < 3; ++i) {
    result.maxThreadsDim[i] = kMaxBlockDim[i];
    result.maxGridSize[i] = kMaxGridDim[i];
  }
  result.totalConstMem = kConstantBytes;
  result.major = device.major;
  result.minor = device.minor;
  result.multiProcessorCount = device.num_multiprocessors;
  result.maxThreadsPerMultiProcessor = device.max_threads_per_multiprocessor;
  result.maxBlocksPerMultiProcessor = device.max_blocks_per_multiprocessor;
  result.memoryBusWidth = device.memory_bus_bits;
  result.l2CacheSize = static_cast<int>(device.l2_bytes);
  result.canMapHostMemory = result.concurrentKernels = result.unifiedAddressing = 1;
  result.managedMemory = result.concurrentManagedAccess = result.streamPrioritiesSupported = 1;
  result.globalL1CacheSupported = result.localL1CacheSupported = result.memoryPoolsSupported = 1;
  result.ECCEnabled = result.pciBusID = 1;
  result.asyncEngineCount = kCopyEngines;
  result.clusterLaunch = device.has_clusters();
  return result;
}

}  // namespace cudart
