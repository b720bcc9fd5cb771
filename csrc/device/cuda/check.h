// Turns an error of the CUDA runtime into Error(kDevice), naming what was being done.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace eagle31rt::cuda {

inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();                                      // an error that the context survives is not to be met again
  const bool is_lost = cudaGetLastError() != cudaSuccess;  // one that it does not survive comes back
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kResource : ErrorCode::kDevice;
  fail(code, "CUDA failed at ", doing, ": ", cudaGetErrorName(status), " (", cudaGetErrorString(status), ")",
       is_lost ? "; a kernel before it broke the GPU's context, this process must be restarted" : "");
}

}  // namespace eagle31rt::cuda
