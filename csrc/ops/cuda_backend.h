// The CUDA backend: a shared library of its own (libeagle31rt_cuda.so), loaded on request only, so that the core starts
// on machines without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/ops.h"

namespace eagle31rt {

// What a machine has, read without touching a GPU's memory.
struct CudaDescription {
  int32_t runtime_version = 0;  // 13000 = 13.0
  int32_t driver_version = 0;   // newest CUDA that the driver knows; 0: no driver
  std::vector<DeviceInfo> devices;
  std::string problem;  // why there are no devices; empty if there are
};

// Differs between builds whose operators or parameters differ.
constexpr uint64_t backend_fingerprint() {
  uint64_t hash = sizeof(Ops) + sizeof(DeviceInfo);
#define E31_MIX(op, Params) hash = hash * 1099511628211u + sizeof(Params);
  E31_FOR_EACH_OP(E31_MIX)
#undef E31_MIX
  return hash;
}

// What the library exports as `eagle31rt_cuda_backend`. Version and fingerprint guard against a library of another
// build.
struct CudaBackend {
  const char* version;
  uint64_t fingerprint;
  const Ops* ops;
  std::unique_ptr<Device> (*open_device)(int index);
  CudaDescription (*describe)();
};

// Loads the library at the first call: EAGLE31RT_CUDA_LIBRARY if set, else beside the module or program that holds this
// function, else by the system's search. libcudart.so.13 must be in the process or in the system's search already.
// Throws Error(kDevice) saying which of the two is missing and how to install it.
const CudaBackend& cuda_backend();

}  // namespace eagle31rt
