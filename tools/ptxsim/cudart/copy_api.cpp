// Exports: copies and fills.
//
// Their timing is that of the real runtime where a program can notice: a copy from pageable memory of the host reads it
// at once, a copy to it waits; pinned memory is read and written when the stream gets there.
#include <cuda_runtime_api.h>

#include <cstring>

#include "runtime.h"

using cudart::Allocation;
using cudart::call;
using cudart::CopyWork;
using cudart::FillWork;
using cudart::Runtime;
using cudart::span;
using cudart::Stream;

namespace {

struct Sides {
  bool source_on_device, destination_on_device;
  bool source_pageable, destination_pageable;
};

Sides inspect(Runtime& state, const CopyWork& copy) {
  const Allocation* source = state.memory.find(copy.source);
  const Allocation* destination = state.memory.find(copy.destination);
  return {source && source->on_device(), destination && destination->on_device(), !source, !destination};
}

// The direction that the caller states must be what the pointers are; managed memory may stand for either side.
bool direction_matches(Runtime& state, const CopyWork& copy, cudaMemcpyKind kind) {
  const auto only_device = [&](const void* pointer) {
    const Allocation* allocation = state.memory.find(pointer);
    return allocation && allocation->on_device() && allocation->kind != cudart::MemoryKind::kManaged;
  };
  const Sides sides = inspect(state, copy);
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) return true;
  if (from_device ? sides.source_pageable : only_device(copy.source)) return false;
  return !(to_device ? sides.destination_pageable : only_device(copy.destination));
}

cudaError_t check(Runtime& state, const char* name, const CopyWork& copy, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  const auto refuse = [&](const std::string& why) {
    state.explain(std::string(name) + ": " + why);
    return cudaErrorInvalidValue;
  };
  if (!copy.source || !copy.destination) return refuse("a null pointer");
  if (copy.height > 1 && (copy.width > copy.source_pitch || copy.width > copy.destination_pitch)) {
    return cudaErrorInvalidPitchValue;
  }
  const std::string source =
      state.memory.why_out_of_bounds(copy.source, span(copy.source_pitch, copy.width, copy.height));
  if (!source.empty()) return refuse("reads " + source);
  const std::string destination =
      state.memory.why_out_of_bounds(copy.destination, span(copy.destination_pitch, copy.width, copy.height));
  if (!destination.empty()) return refuse("writes " + destination);
  if (!direction_matches(state, copy, kind)) return refuse("the pointers are not on the sides that the kind says");
  return cudaSuccess;
}

// Reads the source now, rows packed.
void stage(CopyWork& copy) {
  copy.staged = std::make_shared<std::vector<std::byte>>(copy.width * copy.height);
  for (size_t row = 0; row < copy.height; ++row) {
    std::memcpy(copy.staged->data() + row * copy.width,
                static_cast<const std::byte*>(copy.source) + row * copy.source_pitch, copy.width);
  }
  copy.source_pitch = copy.width;
}

cudaError_t copy_async(Runtime& state, const std::shared_ptr<Stream>& stream, const char* name, CopyWork copy,
                       cudaMemcpyKind kind) {
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  const cudaError_t error = check(state, name, copy, kind);
  if (error != cudaSuccess) return error;
  const Sides sides = inspect(state, copy);
  // A graph reads and writes the host's memory at every replay.
  if (stream->capture) return state.streams.submit(state, stream, std::move(copy));
  if (sides.source_pageable && !sides.destination_pageable) stage(copy);
  const cudaError_t submitted = state.streams.submit(state, stream, std::move(copy));
  if (submitted == cudaSuccess && sides.destination_pageable) state.streams.drain(state, *stream);
  return submitted;
}

// The blocking calls use the legacy default stream; a copy within the device does not wait.
cudaError_t copy_blocking(Runtime& state, const char* name, const CopyWork& copy, cudaMemcpyKind kind) {
  cudaError_t forbidden = state.streams.legacy_in_capture(state);
  if (forbidden == cudaSuccess) forbidden = cudart::forbid_in_capture(state, name);
  if (forbidden != cudaSuccess) return forbidden;
  const std::shared_ptr<Stream> stream = state.streams.find(cudaStreamLegacy);
  const cudaError_t error = copy_async(state, stream, name, copy, kind);
  if (error != cudaSuccess || copy.width == 0 || copy.height == 0) return error;
  const Sides sides = inspect(state, copy);
  if (!(sides.source_on_device && sides.destination_on_device)) state.streams.drain(state, *stream);
  return cudaSuccess;
}

CopyWork flat(void* destination, const void* source, size_t bytes) {
  return {destination, bytes, source, bytes, bytes, 1, nullptr};
}

cudaError_t fill(Runtime& state, const std::shared_ptr<Stream>& stream, const char* name, const FillWork& work) {
  if (work.width == 0 || work.height == 0) return cudaSuccess;
  const std::string problem =
      state.memory.why_out_of_bounds(work.destination, span(work.pitch, work.width, work.height));
  if (!problem.empty() || !state.memory.find(work.destination)) {
    state.explain(std::string(name) + " writes " + (problem.empty() ? "memory that is not the device's" : problem));
    return cudaErrorInvalidValue;
  }
  return state.streams.submit(state, stream, work);
}

// Address of a symbol plus offset, with room for `bytes`.
cudaError_t locate(Runtime& state, const void* symbol, size_t bytes, size_t offset, std::byte** pointer) {
  void* start = nullptr;
  size_t size = 0;
  std::string report;
  const cudaError_t error = state.registry.find_variable(symbol, *state.device, &start, &size, &report);
  if (!report.empty()) state.explain(report);
  if (error != cudaSuccess) return error;
  if (offset > size || bytes > size - offset) {
    state.explain("copy of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                  " of a variable of " + std::to_string(size));
    return cudaErrorInvalidValue;
  }
  state.memory.add(start, size, cudart::MemoryKind::kVariable);
  *pointer = static_cast<std::byte*>(start) + offset;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return call(
      [&](Runtime& state) { return copy_blocking(state, "cudaMemcpy", flat(destination, source, bytes), kind); });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    return copy_async(state, queue, "cudaMemcpyAsync", flat(destination, source, bytes), kind);
  });
}

cudaError_t cudaMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return call([&](Runtime& state) {
    return copy_blocking(state, "cudaMemcpy2D",
                         {destination, destination_pitch, source, source_pitch, width, height, nullptr}, kind);
  });
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    return copy_async(state, queue, "cudaMemcpy2DAsync",
                      {destination, destination_pitch, source, source_pitch, width, height, nullptr}, kind);
  });
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  return call([&](Runtime& state) {
    std::byte* destination = nullptr;
    const cudaError_t error = locate(state, symbol, bytes, offset, &destination);
    return error == cudaSuccess ? copy_blocking(state, "cudaMemcpyToSymbol", flat(destination, source, bytes), kind)
                                : error;
  });
}

cudaError_t cudaMemcpyFromSymbol(void* destination, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  return call([&](Runtime& state) {
    std::byte* source = nullptr;
    const cudaError_t error = locate(state, symbol, bytes, offset, &source);
    return error == cudaSuccess ? copy_blocking(state, "cudaMemcpyFromSymbol", flat(destination, source, bytes), kind)
                                : error;
  });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    std::byte* destination = nullptr;
    const cudaError_t error = locate(state, symbol, bytes, offset, &destination);
    return error == cudaSuccess
               ? copy_async(state, queue, "cudaMemcpyToSymbolAsync", flat(destination, source, bytes), kind)
               : error;
  });
}

cudaError_t cudaMemcpyFromSymbolAsync(void* destination, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    std::byte* source = nullptr;
    const cudaError_t error = locate(state, symbol, bytes, offset, &source);
    return error == cudaSuccess
               ? copy_async(state, queue, "cudaMemcpyFromSymbolAsync", flat(destination, source, bytes), kind)
               : error;
  });
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    return fill(state, queue, "cudaMemset", {pointer, bytes, static_cast<unsigned char>(value), bytes, 1});
  });
}

cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(pointer, pitch, value, width, height, nullptr);
}

cudaError_t cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    return fill(state, queue, "cudaMemset2D", {pointer, pitch, static_cast<unsigned char>(value), width, height});
  });
}

}  // extern "C"
