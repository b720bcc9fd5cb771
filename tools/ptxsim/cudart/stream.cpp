#include "stream.h"

#include <algorithm>
#include <random>

#include "runtime.h"

namespace cudart {
namespace {

void add_unique(std::vector<size_t>& target, const std::vector<size_t>& items) {
  for (size_t item : items) {
    if (std::find(target.begin(), target.end(), item) == target.end()) target.push_back(item);
  }
}

}  // namespace

Streams::Streams() { legacy_ = create(cudaStreamDefault, 0); }

std::shared_ptr<Stream> Streams::create(unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->id = next_id_++;
  stream->flags = flags;
  stream->priority = priority;
  streams_.push_back(stream);
  return stream;
}

cudaError_t Streams::destroy(Runtime& runtime, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return cudaErrorInvalidResourceHandle;
  }
  const std::shared_ptr<Stream> stream = find(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    runtime.explain("cudaStreamDestroy of a stream that is capturing");
    const std::shared_ptr<Capture> capture = stream->capture;
    capture->invalid = true;
    stream->capture = nullptr;
    if (capture->origin.lock() == stream) {
      for (const std::shared_ptr<Stream>& member : capturing(*capture)) member->capture = nullptr;
      capture->graph = nullptr;
    }
  }
  stream->destroyed = true;
  std::erase_if(streams_, [](const auto& entry) { return entry->destroyed && entry->queue.empty(); });
  return cudaSuccess;
}

std::shared_ptr<Stream> Streams::find(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return legacy_;
  if (handle == cudaStreamPerThread) {
    static thread_local std::shared_ptr<Stream> per_thread = create(cudaStreamDefault, 0);
    return per_thread;
  }
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (Streams::handle(stream) == handle && !stream->destroyed) return stream;
  }
  return nullptr;
}

cudaError_t Streams::legacy_in_capture(Runtime& runtime) {
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (!stream->capture || !stream->blocking()) continue;
    stream->capture->invalid = true;
    runtime.explain("work for the legacy default stream while a blocking stream is capturing");
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

cudaError_t Streams::append(Runtime& runtime, const std::shared_ptr<Stream>& stream, Work work) {
  if (is_legacy(*stream)) {
    const cudaError_t error = legacy_in_capture(runtime);
    if (error != cudaSuccess) return error;
  }
  stream->queue.push_back({next_sequence_++, std::move(work)});
  if (runtime.eager) drain(runtime, *stream);
  return cudaSuccess;
}

cudaError_t Streams::submit(Runtime& runtime, const std::shared_ptr<Stream>& stream, Work work) {
  if (!stream->capture) return append(runtime, stream, std::move(work));
  Capture& capture = *stream->capture;
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  capture.graph->nodes.push_back({std::move(work), stream->capture_tail});
  stream->capture_tail = {capture.graph->nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t Streams::record(Runtime& runtime, const std::shared_ptr<Stream>& stream, Event& event) {
  if (stream->capture) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    event.capture = stream->capture;
    event.capture_dependencies = stream->capture_tail;
    return cudaSuccess;
  }
  const auto recording = std::make_shared<Recording>();
  recording->stream = stream;
  recording->sequence = next_sequence_;
  const cudaError_t error = append(runtime, stream, RecordWork{recording});
  if (error != cudaSuccess) return error;
  event.capture = nullptr;
  event.recording = recording;
  return cudaSuccess;
}

cudaError_t Streams::wait(Runtime& runtime, const std::shared_ptr<Stream>& stream, const Event& event) {
  if (event.capture) {
    if (!event.capture->graph) return cudaErrorCapturedEvent;
    if (stream->capture && stream->capture != event.capture) {
      stream->capture->invalid = event.capture->invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    if (is_legacy(*stream)) {
      event.capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
    stream->capture = event.capture;
    add_unique(stream->capture_tail, event.capture_dependencies);
    return cudaSuccess;
  }
  if (!event.recording) return cudaSuccess;
  if (stream->capture) {
    stream->capture->invalid = true;
    runtime.explain("a capturing stream waits for an event that was recorded outside of its capture");
    return cudaErrorStreamCaptureIsolation;
  }
  return append(runtime, stream, WaitWork{event.recording});
}

void Streams::drain_dependencies(Runtime& runtime, Stream& stream, const Operation& operation) {
  if (const auto* wait = std::get_if<WaitWork>(&operation.work)) {
    const std::shared_ptr<Recording> recording = wait->recording;
    if (!recording->done) drain(runtime, *recording->stream, recording->sequence);
  }
  const uint64_t before = operation.sequence - 1;
  if (is_legacy(stream)) {
    for (const std::shared_ptr<Stream>& other : std::vector(streams_)) {
      if (other->blocking() && other.get() != &stream) drain(runtime, *other, before);
    }
  } else if (stream.blocking()) {
    drain(runtime, *legacy_, before);
  }
}

void Streams::run_front(Runtime& runtime, Stream& stream) {
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  execute(runtime, operation.work);
}

void Streams::drain(Runtime& runtime, Stream& stream, uint64_t last) {
  runtime.wait_for_host_function();
  while (!stream.queue.empty() && stream.queue.front().sequence <= last) {
    const uint64_t sequence = stream.queue.front().sequence;
    drain_dependencies(runtime, stream, stream.queue.front());
    // A failure on the way empties all queues; a host function lets other threads in.
    if (stream.queue.empty() || stream.queue.front().sequence != sequence) continue;
    run_front(runtime, stream);
  }
}

void Streams::drain_all(Runtime& runtime) {
  std::vector<std::shared_ptr<Stream>> order = streams_;
  if (runtime.options.shuffle) std::shuffle(order.begin(), order.end(), std::mt19937_64(runtime.options.seed));
  for (const std::shared_ptr<Stream>& stream : order) drain(runtime, *stream);
  std::erase_if(streams_, [](const auto& entry) { return entry->destroyed && entry->queue.empty(); });
}

void Streams::advance(Runtime& runtime, Stream& stream) {
  Stream* target = &stream;
  if (stream.queue.empty() && is_legacy(stream)) {
    for (const std::shared_ptr<Stream>& other : streams_) {
      if (other->blocking() && !other->queue.empty()) target = other.get();
    }
  }
  if (!target->queue.empty()) drain(runtime, *target, target->queue.front().sequence);
}

bool Streams::idle(Stream& stream) const {
  if (!stream.queue.empty()) return false;
  if (!is_legacy(stream)) return true;
  return std::ranges::all_of(streams_, [](const auto& other) { return !other->blocking() || other->queue.empty(); });
}

void Streams::clear() {
  for (const std::shared_ptr<Stream>& stream : streams_) {
    for (const Operation& operation : stream->queue) {
      if (const auto* record = std::get_if<RecordWork>(&operation.work)) record->recording->done = true;
    }
    stream->queue.clear();
  }
}

std::vector<std::shared_ptr<Stream>> Streams::capturing(const Capture& capture) const {
  std::vector<std::shared_ptr<Stream>> members;
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (stream->capture.get() == &capture) members.push_back(stream);
  }
  return members;
}

cudaEvent_t Events::create(unsigned flags) {
  events_.push_back(std::make_unique<Event>());
  events_.back()->flags = flags;
  return reinterpret_cast<cudaEvent_t>(events_.back().get());
}

bool Events::destroy(cudaEvent_t handle) {
  return std::erase_if(events_,
                       [&](const auto& event) { return reinterpret_cast<cudaEvent_t>(event.get()) == handle; }) != 0;
}

Event* Events::find(cudaEvent_t handle) {
  for (const auto& event : events_) {
    if (reinterpret_cast<cudaEvent_t>(event.get()) == handle) return event.get();
  }
  return nullptr;
}

}  // namespace cudart
