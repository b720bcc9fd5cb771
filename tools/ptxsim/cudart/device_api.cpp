// Exports: the device, its properties, synchronisation with it, errors.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "error_names.h"
#include "runtime.h"

using cudart::call;
using cudart::DeviceProfile;
using cudart::Runtime;
using cudart::runtime;

namespace {

constexpr char kPciBusId[] = "0000:01:00.0";

cudaError_t attribute(const DeviceProfile& device, cudaDeviceAttr name, int* value) {
  switch (name) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = cudart::kMaxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
    case cudaDevAttrMaxBlockDimZ:
      *value = cudart::kMaxBlockDim[name - cudaDevAttrMaxBlockDimX];
      break;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = cudart::kMaxGridDim[name - cudaDevAttrMaxGridDimX];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(cudart::kSharedPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(device.shared_per_block_optin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(device.shared_per_multiprocessor);
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = device.major >= 8 ? static_cast<int>(cudart::kReservedSharedPerBlock) : 0;
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = static_cast<int>(cudart::kConstantBytes);
      break;
    case cudaDevAttrWarpSize:
      *value = cudart::kWarpSize;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = static_cast<int>(cudart::kRegistersPerBlock);
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = device.registers_per_multiprocessor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = device.num_multiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = device.max_threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = device.max_blocks_per_multiprocessor;
      break;
    case cudaDevAttrClockRate:
      *value = device.clock_khz;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = device.memory_clock_khz;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = device.memory_bus_bits;
      break;
    case cudaDevAttrL2CacheSize:
      *value = static_cast<int>(device.l2_bytes);
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = 3;
      break;
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
      *value = 1;
      break;
    case cudaDevAttrClusterLaunch:
      *value = device.has_clusters();
      break;
    default:
      // What is not simulated (textures, cooperative launches, peers, IPC) is reported as absent.
      if (name < cudaDevAttrMaxThreadsPerBlock || name >= cudaDevAttrMax) return cudaErrorInvalidValue;
      *value = 0;
  }
  return cudaSuccess;
}

cudaDeviceProp properties(const DeviceProfile& device) {
  cudaDeviceProp result = {};
  std::snprintf(result.name, sizeof(result.name), "%s", device.name);
  std::memcpy(result.uuid.bytes, "ptxsim device 0", sizeof(result.uuid.bytes));
  result.totalGlobalMem = cudart::device_memory_bytes();
  result.sharedMemPerBlock = cudart::kSharedPerBlock;
  result.sharedMemPerBlockOptin = device.shared_per_block_optin;
  result.sharedMemPerMultiprocessor = device.shared_per_multiprocessor;
  result.reservedSharedMemPerBlock = device.major >= 8 ? cudart::kReservedSharedPerBlock : 0;
  result.regsPerBlock = static_cast<int>(cudart::kRegistersPerBlock);
  result.regsPerMultiprocessor = device.registers_per_multiprocessor;
  result.warpSize = cudart::kWarpSize;
  result.memPitch = 0x7fffffff;
  result.maxThreadsPerBlock = cudart::kMaxThreadsPerBlock;
  for (int i = 0; i < 3; ++i) {
    result.maxThreadsDim[i] = cudart::kMaxBlockDim[i];
    result.maxGridSize[i] = cudart::kMaxGridDim[i];
  }
  result.totalConstMem = cudart::kConstantBytes;
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
  result.asyncEngineCount = 3;
  result.clusterLaunch = device.has_clusters();
  return result;
}

cudaError_t check_ordinal(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (!runtime().device) return cudart::remember(runtime().no_device_error);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  return call([&](Runtime&) {
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Runtime&) { return check_ordinal(device); });
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }

cudaError_t cudaSetDeviceFlags(unsigned) {
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return call([&](Runtime&) {
    *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  return call([&](Runtime& state) {
    if (!value) return cudaErrorInvalidValue;
    return device == 0 ? attribute(*state.device, name, value) : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  return call([&](Runtime& state) {
    if (device == 0) *result = properties(*state.device);
    return check_ordinal(device);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return call([&](Runtime&) {
    if (device != 0) return cudaErrorInvalidDevice;
    return std::snprintf(text, static_cast<size_t>(length), "%s", kPciBusId) < length ? cudaSuccess
                                                                                      : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  return call([&](Runtime&) {
    if (std::strcmp(text, kPciBusId) != 0) return cudaErrorInvalidDevice;
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return call([&](Runtime&) {
    *can_access = 0;
    return device == 0 && peer == 0 ? cudaSuccess : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) {
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
  return call([](Runtime& state) {
    const cudaError_t forbidden = cudart::forbid_in_capture(state, "cudaDeviceSynchronize", true);
    if (forbidden == cudaSuccess) state.streams.drain_all(state);
    return forbidden;
  });
}

// Frees all memory and drops all work, and with it a sticky error.
cudaError_t cudaDeviceReset() {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  state.streams.clear();
  state.memory.release_all();
  state.sticky = cudart::last_error = cudaSuccess;
  return cudaSuccess;
}

// As the real runtime answers where no driver is installed.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = runtime().device || runtime().no_device_error == cudaErrorNoDevice ? cudart::kVersion : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = cudart::kVersion;
  return cudaSuccess;
}

// No function of the driver is simulated.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return call([&](Runtime& state) {
    state.explain(std::string("the program asks for the driver's ") + symbol + ", which is not simulated");
    *function = nullptr;
    if (status) *status = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, cudart::kVersion, flags, status);
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  cudart::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().sticky != cudaSuccess ? runtime().sticky : cudart::last_error;
}

const char* cudaGetErrorName(cudaError_t error) { return cudart::error_name(error); }

const char* cudaGetErrorString(cudaError_t error) { return cudart::error_text(error); }

cudaError_t cudaProfilerStart() { return cudaSuccess; }

cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
