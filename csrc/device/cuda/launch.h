// The one way to start a kernel.
//
//   launch("linear", linear_kernel<BFloat16>, {.grid = {n_tiles, m_tiles}, .block = 128, .shared_bytes = bytes},
//   context,
//          params);
//
// Checks the grid, opts in to more than 48 KiB of shared memory, and turns a refused launch into Error(kDevice) that
// names the kernel. A failure while the kernel runs shows at the next synchronize().
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <type_traits>
#include <unordered_map>

#include "device/cuda/check.h"
#include "device/device.h"
#include "device/execution_context.h"

namespace eagle31rt::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// Raises the kernel's limit of dynamic shared memory once; later calls with the same or a smaller size are free.
void allow_shared_memory(const void* kernel, const char* name, size_t num_bytes);

// Called with the name of every kernel that starts, so that synchronize() can say what ran last.
void note_launch(const char* name);
const char* last_launch();

void launch_erased(const char* name, const void* kernel, const LaunchShape& shape, ExecutionContext& context,
                   void** arguments);

template <typename... Params, typename... Arguments>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, ExecutionContext& context,
            const Arguments&... arguments) {
  static_assert(sizeof...(Params) == sizeof...(Arguments), "one argument for each parameter of the kernel");
  static_assert((std::is_same_v<std::remove_cv_t<Params>, Arguments> && ...), "arguments must have the exact types");
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  launch_erased(name, reinterpret_cast<const void*>(kernel), shape, context, pointers);
}

}  // namespace eagle31rt::cuda
