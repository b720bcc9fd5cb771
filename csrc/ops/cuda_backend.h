// The CUDA backend: a shared library of its own (libeagle31rt_cuda.so), loaded on request only, so that the core starts
// on machines without CUDA.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "ops/ops.h"

namespace eagle31rt {

// What the library exports as `eagle31rt_cuda_backend`. The version guards against a library of another build.
struct CudaBackend {
  const char* version;
  const Ops* ops;
  std::unique_ptr<Device> (*open_device)(int index);
};

// Loads the library at the first call: EAGLE31RT_CUDA_LIBRARY if set, else beside the module or program that holds this
// function, else by the system's search. libcudart.so.13 must be in the process or in the system's search already.
// Throws Error(kDevice) saying which of the two is missing and how to install it.
const CudaBackend& cuda_backend();

}  // namespace eagle31rt
