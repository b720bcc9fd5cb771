// Exports: allocation, and what a pointer is.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "runtime.h"

using cudart::Allocation;
using cudart::call;
using cudart::forbid_in_capture;
using cudart::MemoryKind;
using cudart::Runtime;

namespace {

constexpr size_t kPitchAlignment = 512;

char default_pool;  // its address is the handle

cudaError_t allocate(Runtime& state, void** pointer, size_t bytes, MemoryKind kind) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (state.faults.malloc_fails()) return cudaErrorMemoryAllocation;
  *pointer = state.memory.allocate(bytes, kind);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t allocate(const char* name, void** pointer, size_t bytes, MemoryKind kind) {
  return call([&](Runtime& state) {
    const cudaError_t forbidden = forbid_in_capture(state, name);
    return forbidden == cudaSuccess ? allocate(state, pointer, bytes, kind) : forbidden;
  });
}

// Why `pointer` cannot be freed by this call, empty if it can.
std::string why_not_free(Runtime& state, void* pointer, bool pinned) {
  const Allocation* allocation = state.memory.find_start(pointer);
  if (!allocation) {
    return state.memory.find(pointer) ? "a pointer into the middle of a buffer"
                                      : "a pointer that is no live buffer (freed twice?)";
  }
  if (allocation->release_queued) return "a buffer that cudaFreeAsync has already been given";
  const bool is_pinned = allocation->kind == MemoryKind::kPinned;
  const bool can_be_freed =
      is_pinned || allocation->kind == MemoryKind::kDevice || allocation->kind == MemoryKind::kManaged;
  return can_be_freed && is_pinned == pinned ? "" : "memory that another kind of call allocated";
}

// Waits for all work, as the real call does.
cudaError_t release(const char* name, void* pointer, bool pinned) {
  return call([&](Runtime& state) {
    if (!pointer) return cudaSuccess;
    const cudaError_t forbidden = forbid_in_capture(state, name);
    if (forbidden != cudaSuccess) return forbidden;
    const std::string problem = why_not_free(state, pointer, pinned);
    if (!problem.empty()) {
      state.explain(std::string(name) + " of " + problem);
      return cudaErrorInvalidValue;
    }
    state.streams.drain_all(state);
    state.memory.release(pointer);
    return cudaSuccess;
  });
}

cudaMemoryType memory_type(const Allocation& allocation) {
  switch (allocation.kind) {
    case MemoryKind::kManaged:
      return cudaMemoryTypeManaged;
    case MemoryKind::kPinned:
    case MemoryKind::kRegistered:
      return cudaMemoryTypeHost;
    default:
      return cudaMemoryTypeDevice;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return allocate("cudaMalloc", pointer, bytes, MemoryKind::kDevice);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return allocate("cudaMallocHost", pointer, bytes, MemoryKind::kPinned);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate("cudaHostAlloc", pointer, bytes, MemoryKind::kPinned);
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) return cudart::remember(cudaErrorInvalidValue);
  if (bytes == 0) return cudart::remember(cudaErrorInvalidValue);
  return allocate("cudaMallocManaged", pointer, bytes, MemoryKind::kManaged);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  return allocate("cudaMallocPitch", pointer, *pitch * height, MemoryKind::kDevice);
}

cudaError_t cudaFree(void* pointer) { return release("cudaFree", pointer, false); }

cudaError_t cudaFreeHost(void* pointer) { return release("cudaFreeHost", pointer, true); }

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    if (queue->capture) {
      state.explain("cudaMallocAsync in a capture (memory nodes of graphs) is not simulated");
      return cudaErrorNotSupported;
    }
    return allocate(state, pointer, bytes, MemoryKind::kDevice);
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    if (!pointer) return cudaSuccess;
    const std::string problem = why_not_free(state, pointer, false);
    if (!problem.empty()) {
      state.explain("cudaFreeAsync of " + problem);
      return cudaErrorInvalidValue;
    }
    if (queue->capture) {
      state.explain("cudaFreeAsync in a capture (memory nodes of graphs) is not simulated");
      return cudaErrorNotSupported;
    }
    state.memory.find_start(pointer)->release_queued = true;
    return state.streams.submit(state, queue, cudart::ReleaseWork{pointer});
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return call([&](Runtime& state) {
    if (!pointer || bytes == 0) return cudaErrorInvalidValue;
    if (state.memory.find(pointer)) return cudaErrorHostMemoryAlreadyRegistered;
    state.memory.add(pointer, bytes, MemoryKind::kRegistered);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return call([&](Runtime& state) {
    const Allocation* allocation = state.memory.find_start(pointer);
    if (!allocation || allocation->kind != MemoryKind::kRegistered) return cudaErrorHostMemoryNotRegistered;
    state.memory.release(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
  return call([&](Runtime& state) {
    const Allocation* allocation = state.memory.find(host_pointer);
    if (!allocation || allocation->kind != MemoryKind::kPinned) return cudaErrorInvalidValue;
    *device_pointer = host_pointer;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host_pointer) {
  return call([&](Runtime& state) {
    const Allocation* allocation = state.memory.find(host_pointer);
    if (!allocation || allocation->on_device()) return cudaErrorInvalidValue;
    *flags = cudaHostAllocMapped;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&](Runtime& state) {
    *total = cudart::device_memory_bytes();
    *free = *total - std::min(*total, state.memory.device_bytes());
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call([&](Runtime& state) {
    if (!attributes) return cudaErrorInvalidValue;
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    const Allocation* allocation = state.memory.find(pointer);
    if (!allocation) {
      attributes->hostPointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
    attributes->type = memory_type(*allocation);
    attributes->device = 0;
    if (allocation->kind != MemoryKind::kRegistered) attributes->devicePointer = const_cast<void*>(pointer);
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return call([&](Runtime& state) {
    size_t bytes = 0;
    std::string report;
    const cudaError_t error = state.registry.find_variable(symbol, *state.device, pointer, &bytes, &report);
    if (!report.empty()) state.explain(report);
    if (error == cudaSuccess) state.memory.add(*pointer, bytes, MemoryKind::kVariable);
    return error;
  });
}

cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  return call([&](Runtime& state) {
    void* pointer = nullptr;
    std::string report;
    return state.registry.find_variable(symbol, *state.device, &pointer, size, &report);
  });
}

// Hints about managed memory change nothing here.
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t stream) {
  return call(stream, [](Runtime&, const auto&) { return cudaSuccess; });
}

// There is one pool and it has nothing to tune.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call([&](Runtime&) {
    if (device != 0) return cudaErrorInvalidDevice;
    *pool = reinterpret_cast<cudaMemPool_t>(&default_pool);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return call([](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return call([](Runtime&) { return cudaSuccess; });
}

}  // extern "C"
