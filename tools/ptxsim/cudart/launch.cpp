#include "launch.h"

#include <algorithm>
#include <cstring>

namespace cudart {
namespace {

std::string text(const dim3& dim) {
  return "(" + std::to_string(dim.x) + ", " + std::to_string(dim.y) + ", " + std::to_string(dim.z) + ")";
}

uint64_t count(const dim3& dim) { return uint64_t{dim.x} * dim.y * dim.z; }

bool within(const dim3& dim, const int (&limit)[3]) {
  const auto fits = [](unsigned value, int most) { return value >= 1 && value <= static_cast<unsigned>(most); };
  return fits(dim.x, limit[0]) && fits(dim.y, limit[1]) && fits(dim.z, limit[2]);
}

// What is wrong with the shape of grid and block, empty if nothing.
std::string why_bad_shape(const Function& function, const LaunchRequest& request) {
  if (!within(request.grid, kMaxGridDim)) return "grid " + text(request.grid) + " is empty or too large";
  if (!within(request.block, kMaxBlockDim) || count(request.block) > kMaxThreadsPerBlock) {
    return "block " + text(request.block) + " is empty or has more than 1024 threads";
  }
  if (count(request.block) > function.info->max_threads) {
    return "block " + text(request.block) + " exceeds the kernel's launch bound of " +
           std::to_string(function.info->max_threads) + " threads";
  }
  return "";
}

std::string why_bad_cluster(const Function& function, const DeviceProfile& device, const LaunchRequest& request) {
  const dim3 &cluster = request.cluster, &grid = request.grid;
  if (count(cluster) == 1) return "";
  if (!device.has_clusters()) return "clusters need compute capability 9.0";
  const int most = function.non_portable_cluster ? 2 * kMaxPortableClusterSize : kMaxPortableClusterSize;
  if (count(cluster) == 0 || count(cluster) > static_cast<uint64_t>(most)) {
    return "cluster " + text(cluster) + " is empty or has more than " + std::to_string(most) + " blocks";
  }
  if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z) {
    return "grid " + text(grid) + " is not divisible by cluster " + text(cluster);
  }
  return "";
}

std::vector<std::byte> pack(const ptxsim::KernelInfo& info, void* const* arguments) {
  std::vector<std::byte> packed(info.parameter_bytes);
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    std::memcpy(packed.data() + info.parameters[i].offset, arguments[i], info.parameters[i].size);
  }
  return packed;
}

ptxsim::Dim3 convert(const dim3& dim) { return {dim.x, dim.y, dim.z}; }

}  // namespace

cudaError_t find_function(Runtime& runtime, const void* host_function, Function** function) {
  std::string report;
  const cudaError_t error = runtime.registry.find_function(host_function, *runtime.device, function, &report);
  if (error == cudaErrorInvalidPtx) {
    runtime.fail(error, report);
  } else if (!report.empty()) {
    runtime.explain(report);
  }
  return error;
}

size_t dynamic_shared_limit(const Function& function) {
  if (function.max_dynamic_shared >= 0) return static_cast<size_t>(function.max_dynamic_shared);
  const size_t used = function.info->static_shared_bytes;
  return used < kSharedPerBlock ? kSharedPerBlock - used : 0;
}

size_t dynamic_shared_optin(const Function& function, const DeviceProfile& device) {
  const size_t used = function.info->static_shared_bytes;
  return used < device.shared_per_block_optin ? device.shared_per_block_optin - used : 0;
}

int blocks_per_multiprocessor(const Function& function, const DeviceProfile& device, int num_threads,
                              size_t dynamic_shared_bytes) {
  if (num_threads < 1 || num_threads > static_cast<int>(function.info->max_threads)) return 0;
  const size_t shared = function.info->static_shared_bytes + dynamic_shared_bytes;
  if (shared > device.shared_per_block_optin) return 0;
  // 256 bytes is the unit of allocation; each block costs 1 KiB more. T4 has no such reserve.
  const size_t reserved = device.major >= 8 ? kReservedSharedPerBlock : 0;
  const size_t per_block = (shared + reserved + 255) / 256 * 256;
  const int warps = (num_threads + kWarpSize - 1) / kWarpSize;
  int blocks =
      std::min(device.max_blocks_per_multiprocessor, device.max_threads_per_multiprocessor / (warps * kWarpSize));
  if (per_block > 0) blocks = std::min(blocks, static_cast<int>(device.shared_per_multiprocessor / per_block));
  return blocks;
}

cudaError_t launch(Runtime& runtime, const std::shared_ptr<Stream>& stream, const LaunchRequest& request,
                   void* const* arguments) {
  Function* function = nullptr;
  const cudaError_t found = find_function(runtime, request.function, &function);
  if (found != cudaSuccess) return found;
  const auto refuse = [&](cudaError_t error, const std::string& why) {
    runtime.explain("kernel " + function->display + ": " + why);
    return error;
  };
  const std::string bad_shape = why_bad_shape(*function, request);
  if (!bad_shape.empty()) return refuse(cudaErrorInvalidConfiguration, bad_shape);
  const std::string bad_cluster = why_bad_cluster(*function, *runtime.device, request);
  if (!bad_cluster.empty()) return refuse(cudaErrorInvalidClusterSize, bad_cluster);
  if (request.dynamic_shared_bytes > dynamic_shared_limit(*function)) {
    return refuse(cudaErrorInvalidValue, std::to_string(request.dynamic_shared_bytes) +
                                             " bytes of dynamic shared memory; cudaFuncSetAttribute allowed " +
                                             std::to_string(dynamic_shared_limit(*function)));
  }
  if (!function->info->parameters.empty() && !arguments) return cudaErrorInvalidValue;
  ptxsim::Module::LaunchConfig config;
  config.grid = convert(request.grid);
  config.block = convert(request.block);
  config.cluster = convert(request.cluster);
  config.dynamic_shared_bytes = static_cast<uint32_t>(request.dynamic_shared_bytes);
  return runtime.streams.submit(runtime, stream, KernelWork{function, config, pack(*function->info, arguments)});
}

}  // namespace cudart
