// From a launch call to work in a stream.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <memory>

#include "runtime.h"

namespace cudart {

struct LaunchRequest {
  const void* function;  // its address in the host program
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  dim3 cluster = {1, 1, 1};
};

// Checks the limits of device and kernel, copies the arguments and queues the kernel.
cudaError_t launch(Runtime& runtime, const std::shared_ptr<Stream>& stream, const LaunchRequest& request,
                   void* const* arguments);

// find_function of the registry, with the reason of a failure in the report.
cudaError_t find_function(Runtime& runtime, const void* host_function, Function** function);

// The most dynamic shared memory that a launch may ask for without, and with, cudaFuncSetAttribute.
size_t dynamic_shared_limit(const Function& function);
size_t dynamic_shared_optin(const Function& function, const DeviceProfile& device);

// Blocks of this shape that fit on a multiprocessor together, 0 if not even one does.
int blocks_per_multiprocessor(const Function& function, const DeviceProfile& device, int num_threads,
                              size_t dynamic_shared_bytes);

}  // namespace cudart
