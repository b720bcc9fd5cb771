#include "device/cuda/launch.h"

namespace eagle31rt::cuda {

namespace {

constexpr size_t kSharedWithoutOptIn = 48 * 1024;

thread_local const char* last_launched = "nothing";

}  // namespace

void note_launch(const char* name) { last_launched = name; }
const char* last_launch() { return last_launched; }

void allow_shared_memory(const void* kernel, const char* name, size_t num_bytes) {
  if (num_bytes <= kSharedWithoutOptIn) return;
  static std::mutex mutex;
  static std::unordered_map<const void*, size_t> allowed;
  const std::lock_guard lock(mutex);
  size_t& size = allowed[kernel];
  if (num_bytes <= size) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_bytes)),
        concat("asking for ", num_bytes, " bytes of shared memory for ", name).c_str());
  size = num_bytes;
}

void launch_erased(const char* name, const void* kernel, const LaunchShape& shape, ExecutionContext& context,
                   void** arguments) {
  E31_INVARIANT(context.device != nullptr);
  const uint64_t blocks = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  if (blocks == 0) return;
  E31_CHECK(shape.grid.y <= 65535 && shape.grid.z <= 65535, kInternal, name, ": a grid of ", shape.grid.x, " x ",
            shape.grid.y, " x ", shape.grid.z, " blocks is too large");
  allow_shared_memory(kernel, name, shape.shared_bytes);
  note_launch(name);
  check(cudaLaunchKernel(kernel, shape.grid, shape.block, arguments, shape.shared_bytes,
                         static_cast<cudaStream_t>(context.device->stream())),
        concat("the launch of ", name).c_str());
}

}  // namespace eagle31rt::cuda
