// Exports: occupancy. Registers are not known here (PTX has virtual ones), so the figures are upper bounds.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "launch.h"

using cudart::call;
using cudart::Function;
using cudart::Runtime;

namespace {

template <class Body>
cudaError_t with_function(const void* function, Body body) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    const cudaError_t error = cudart::find_function(state, function, &found);
    return error == cudaSuccess ? body(state, *found) : error;
  });
}

dim3 cluster_of(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const auto& value = config.attrs[i].val.clusterDim;
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) return {value.x, value.y, value.z};
  }
  return {1, 1, 1};
}

}  // namespace

extern "C" {

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks, const void* function,
                                                                   int block_size, size_t dynamic_shared_bytes,
                                                                   unsigned) {
  return with_function(function, [&](Runtime& state, const Function& found) {
    if (!num_blocks || block_size < 1) return cudaErrorInvalidValue;
    *num_blocks = cudart::blocks_per_multiprocessor(found, *state.device, block_size, dynamic_shared_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, const void* function, int block_size,
                                                          size_t dynamic_shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(num_blocks, function, block_size, dynamic_shared_bytes,
                                                                0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int num_blocks,
                                                      int block_size) {
  return with_function(function, [&](Runtime& state, const Function& found) {
    if (num_blocks < 1 || cudart::blocks_per_multiprocessor(found, *state.device, block_size, 0) < num_blocks) {
      return cudaErrorInvalidValue;
    }
    const size_t share = state.device->shared_per_multiprocessor / static_cast<size_t>(num_blocks) / 256 * 256;
    const size_t used = found.info->static_shared_bytes + cudart::kReservedSharedPerBlock;
    *bytes = std::min(share > used ? share - used : 0, cudart::dynamic_shared_optin(found, *state.device));
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* num_clusters, const void* function, const cudaLaunchConfig_t* config) {
  return with_function(function, [&](Runtime& state, const Function& found) {
    const dim3 cluster = cluster_of(*config);
    const dim3& block = config->blockDim;
    const int per_multiprocessor = cudart::blocks_per_multiprocessor(
        found, *state.device, static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
    *num_clusters =
        per_multiprocessor * state.device->num_multiprocessors / static_cast<int>(cluster.x * cluster.y * cluster.z);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* cluster_size, const void* function, const cudaLaunchConfig_t*) {
  return with_function(function, [&](Runtime& state, const Function& found) {
    if (!state.device->has_clusters()) return cudaErrorNotSupported;
    *cluster_size = found.non_portable_cluster ? 2 * cudart::kMaxPortableClusterSize : cudart::kMaxPortableClusterSize;
    return cudaSuccess;
  });
}

}  // extern "C"
