// Exports: what the compiler's generated code calls, launches, attributes of kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "launch.h"

using cudart::call;
using cudart::Function;
using cudart::Runtime;
using cudart::runtime;

namespace {

struct CallConfiguration {
  dim3 grid, block;
  size_t dynamic_shared_bytes;
  cudaStream_t stream;
};

// Of kernel<<<...>>>: pushed by the caller, popped by the generated stub.
thread_local std::vector<CallConfiguration> call_configurations;

cudart::Binary* binary_of(void** handle) { return reinterpret_cast<cudart::Binary*>(handle); }

cudaError_t launch(cudaStream_t stream, const cudart::LaunchRequest& request, void* const* arguments) {
  return call(stream,
              [&](Runtime& state, const auto& queue) { return cudart::launch(state, queue, request, arguments); });
}

// Reads the attributes that say something here. Programmatic stream serialisation (PDL) only allows overlap, which a
// simulator of one kernel at a time never makes use of.
cudaError_t read_attributes(const cudaLaunchConfig_t& config, cudart::LaunchRequest* request) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeClusterDimension:
        request->cluster = {attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z};
        break;
      case cudaLaunchAttributeCooperative:
        if (attribute.val.cooperative) return cudaErrorNotSupported;
        break;
      default:
        break;
    }
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  const std::lock_guard lock(runtime().mutex);
  return reinterpret_cast<void**>(runtime().registry.add_binary(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void** handle) {
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.clear();  // queued kernels of an unloaded library have no code any more
  runtime().registry.remove_binary(binary_of(handle));
}

void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* device_name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(runtime().mutex);
  runtime().registry.add_function(binary_of(handle), host_function, device_name);
}

void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* device_name, int, size_t size, int, int) {
  const std::lock_guard lock(runtime().mutex);
  runtime().registry.add_variable(binary_of(handle), host_variable, device_name, size);
}

void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*, const char* device_name, int, size_t size, int,
                              int) {
  const std::lock_guard lock(runtime().mutex);
  runtime().registry.add_managed_variable(binary_of(handle), host_pointer, device_name, size);
}

char __cudaInitModule(void** handle) {
  return call([&](Runtime& state) {
           std::string report;
           const cudaError_t error = state.registry.initialise_managed(binary_of(handle), *state.device, &report);
           if (!report.empty()) state.explain(report);
           return error;
         }) == cudaSuccess;
}

// A kernel's handle is the address of its host stub, so that both can be used wherever CUDA takes either.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  return __cudaGetKernel(kernel, host_function);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared_bytes, CUstream_st* stream) {
  call_configurations.push_back({grid, block, dynamic_shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared_bytes, void* stream) {
  if (call_configurations.empty()) return cudart::remember(cudaErrorMissingConfiguration);
  const CallConfiguration configuration = call_configurations.back();
  call_configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *dynamic_shared_bytes = configuration.dynamic_shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared_bytes,
                             cudaStream_t stream) {
  return launch(stream, {function, grid, block, dynamic_shared_bytes}, arguments);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t dynamic_shared_bytes, cudaStream_t stream) {
  return launch(stream, {kernel, grid, block, dynamic_shared_bytes}, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  if (!config) return cudart::remember(cudaErrorInvalidValue);
  cudart::LaunchRequest request{function, config->gridDim, config->blockDim, config->dynamicSmemBytes};
  const cudaError_t error = read_attributes(*config, &request);
  if (error != cudaSuccess) return cudart::remember(error);
  return launch(config->stream, request, arguments);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    const cudaError_t error = cudart::find_function(state, function, &found);
    if (error != cudaSuccess) return error;
    switch (attribute) {
      case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || static_cast<size_t>(value) > cudart::dynamic_shared_optin(*found, *state.device)) {
          state.explain("kernel " + found->display + ": " + std::to_string(value) +
                        " bytes of dynamic shared memory; the device allows " +
                        std::to_string(cudart::dynamic_shared_optin(*found, *state.device)));
          return cudaErrorInvalidValue;
        }
        found->max_dynamic_shared = value;
        return cudaSuccess;
      case cudaFuncAttributePreferredSharedMemoryCarveout:
        if (value < -1 || value > 100) return cudaErrorInvalidValue;
        found->shared_carveout = value;
        return cudaSuccess;
      case cudaFuncAttributeNonPortableClusterSizeAllowed:
        found->non_portable_cluster = value != 0;
        return cudaSuccess;
      default:
        return cudaErrorNotSupported;
    }
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    const cudaError_t error = cudart::find_function(state, function, &found);
    if (error != cudaSuccess) return error;
    *attributes = {};
    attributes->sharedSizeBytes = found->info->static_shared_bytes;
    attributes->maxThreadsPerBlock = static_cast<int>(found->info->max_threads);
    attributes->ptxVersion = found->binary->architecture;
    attributes->binaryVersion = state.device->compute_capability();
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(cudart::dynamic_shared_limit(*found));
    attributes->preferredShmemCarveout = found->shared_carveout;
    attributes->nonPortableClusterSizeAllowed = found->non_portable_cluster;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    const cudaError_t error = cudart::find_function(state, function, &found);
    if (error == cudaSuccess) *name = found->name.c_str();
    return error;
  });
}

cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset, size_t* size) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    const cudaError_t error = cudart::find_function(state, function, &found);
    if (error != cudaSuccess) return error;
    if (index >= found->info->parameters.size()) return cudaErrorInvalidValue;
    *offset = found->info->parameters[index].offset;
    if (size) *size = found->info->parameters[index].size;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  return call([&](Runtime& state) {
    Function* found = nullptr;
    return cudart::find_function(state, function, &found);
  });
}

}  // extern "C"
