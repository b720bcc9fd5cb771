// Exports: streams and events.
#include <cuda_runtime_api.h>

#include "runtime.h"

using cudart::call;
using cudart::Event;
using cudart::Runtime;
using cudart::Stream;
using cudart::Streams;

namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

// A call that waits for, or asks about, one stream.
cudaError_t forbid(Runtime& state, const Stream& stream, const char* name) {
  if (!stream.capture) {
    return state.streams.is_legacy(stream) ? state.streams.legacy_in_capture(state) : cudaSuccess;
  }
  stream.capture->invalid = true;
  state.explain(std::string(name) + " of a stream that is capturing");
  return cudaErrorStreamCaptureUnsupported;
}

// The same for an event; `body` gets its recording, which is null if it was never recorded.
template <class Body>
cudaError_t with_event(cudaEvent_t handle, const char* name, Body body) {
  return call([&](Runtime& state) {
    Event* event = state.events.find(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) {
      event->capture->invalid = true;
      return cudaErrorCapturedEvent;
    }
    const cudaError_t forbidden = cudart::forbid_in_capture(state, name);
    return forbidden == cudaSuccess ? body(state, event->recording) : forbidden;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call([&](Runtime& state) {
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = Streams::handle(state.streams.create(flags, priority));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, kLeastPriority);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](Runtime& state) { return state.streams.destroy(state, stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call(stream, [](Runtime& state, const auto& queue) {
    const cudaError_t forbidden = forbid(state, *queue, "cudaStreamSynchronize");
    if (forbidden != cudaSuccess) return forbidden;
    state.streams.drain(state, *queue);
    if (!state.streams.is_legacy(*queue)) return cudaSuccess;
    for (const auto& other : std::vector(state.streams.all())) {
      if (other->blocking()) state.streams.drain(state, *other);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call(stream, [](Runtime& state, const auto& queue) {
    const cudaError_t forbidden = forbid(state, *queue, "cudaStreamQuery");
    if (forbidden != cudaSuccess) return forbidden;
    if (state.streams.idle(*queue)) return cudaSuccess;
    state.streams.advance(state, *queue);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    const Event* found = state.events.find(event);
    return found ? state.streams.wait(state, queue, *found) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return call(stream, [&](Runtime&, const auto& queue) {
    *flags = queue->flags;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call(stream, [&](Runtime&, const auto& queue) {
    *priority = queue->priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return call(stream, [&](Runtime&, const auto& queue) {
    *id = queue->id;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call(stream, [&](Runtime&, const auto&) {
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([&](Runtime&) {
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    return function ? state.streams.submit(state, queue, cudart::HostWork{function, data}) : cudaErrorInvalidValue;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](Runtime& state) {
    if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)) {
      return cudaErrorInvalidValue;
    }
    *event = state.events.create(flags);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(
      [&](Runtime& state) { return state.events.destroy(event) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    Event* found = state.events.find(event);
    return found ? state.streams.record(state, queue, *found) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return with_event(event, "cudaEventSynchronize", [](Runtime& state, const auto& recording) {
    if (recording && !recording->done) state.streams.drain(state, *recording->stream, recording->sequence);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return with_event(event, "cudaEventQuery", [](Runtime& state, const auto& recording) {
    if (!recording || recording->done) return cudaSuccess;
    state.streams.advance(state, *recording->stream);
    return cudaErrorNotReady;
  });
}

// The time that the simulation took, which says nothing about hardware; it is monotonic and above zero.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&](Runtime& state) {
    const Event *first = state.events.find(start), *last = state.events.find(end);
    if (!milliseconds) return cudaErrorInvalidValue;
    if (!first || !last || !first->recording || !last->recording) return cudaErrorInvalidResourceHandle;
    if ((first->flags | last->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    if (!first->recording->done || !last->recording->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(last->recording->when - first->recording->when).count();
    return cudaSuccess;
  });
}

}  // extern "C"
