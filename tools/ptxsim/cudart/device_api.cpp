// Exports: the device, its properties, synchronisation with it, errors.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "device_properties.h"
#include "error_names.h"
#include "runtime.h"

using cudart::call;
using cudart::Runtime;
using cudart::runtime;

namespace {

constexpr char kPciBusId[] = "0000:01:00.0";

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
    if (device != 0) return cudaErrorInvalidDevice;
    if (name < cudaDevAttrMaxThreadsPerBlock || name >= cudaDevAttrMax) return cudaErrorInvalidValue;
    *value = cudart::attribute(*state.device, name);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  return call([&](Runtime& state) {
    if (device == 0) *result = cudart::properties(*state.device);
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
