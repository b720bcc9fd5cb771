// Streams as queues. Nothing runs when it is submitted; it runs when a call waits for it, so that a program which
// forgets to wait reads stale data here as it may on hardware.
#pragma once

#include <driver_types.h>

#include <deque>
#include <memory>
#include <vector>

#include "graph.h"
#include "work.h"

namespace cudart {

struct Operation {
  uint64_t sequence;  // order of submission over all streams
  Work work;
};

struct Stream {
  uint64_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  bool destroyed = false;  // by the program; what is queued still runs
  std::deque<Operation> queue;
  std::shared_ptr<Capture> capture;  // null: not capturing
  std::vector<size_t> capture_tail;  // nodes that the next captured operation depends on

  // Ordered after earlier work of the legacy default stream, and the other way round.
  bool blocking() const { return !(flags & cudaStreamNonBlocking); }
};

struct Event {
  unsigned flags = 0;
  std::shared_ptr<Recording> recording;      // null: never recorded
  std::shared_ptr<Capture> capture;          // set if it was last recorded in a capturing stream
  std::vector<size_t> capture_dependencies;  // the nodes that it stands for there
};

class Streams {
 public:
  Streams();

  std::shared_ptr<Stream> create(unsigned flags, int priority);
  cudaError_t destroy(Runtime& runtime, cudaStream_t handle);
  // The stream of a handle: 0 and cudaStreamLegacy, cudaStreamPerThread, or one that create() made. Null: no such.
  std::shared_ptr<Stream> find(cudaStream_t handle);
  bool is_legacy(const Stream& stream) const { return &stream == legacy_.get(); }
  static cudaStream_t handle(const std::shared_ptr<Stream>& stream) {
    return reinterpret_cast<cudaStream_t>(stream.get());
  }

  // Appends work to a stream, or to the graph that it captures.
  cudaError_t submit(Runtime& runtime, const std::shared_ptr<Stream>& stream, Work work);
  cudaError_t record(Runtime& runtime, const std::shared_ptr<Stream>& stream, Event& event);
  cudaError_t wait(Runtime& runtime, const std::shared_ptr<Stream>& stream, const Event& event);

  // The legacy default stream waits for blocking streams, so it takes no work while one of them captures: returns the
  // error and voids the capture.
  cudaError_t legacy_in_capture(Runtime& runtime);

  // Runs what the stream holds up to this sequence number, and what that depends on in other streams.
  void drain(Runtime& runtime, Stream& stream, uint64_t last = ~uint64_t{0});
  void drain_all(Runtime& runtime);
  // One operation, so that a program that polls gets on.
  void advance(Runtime& runtime, Stream& stream);
  bool idle(Stream& stream) const;  // as a query sees it: with what the legacy stream must wait for
  void clear();                     // forgets all queued work; events in it count as reached

  const std::vector<std::shared_ptr<Stream>>& all() const { return streams_; }
  std::vector<std::shared_ptr<Stream>> capturing(const Capture& capture) const;

 private:
  void drain_dependencies(Runtime& runtime, Stream& stream, const Operation& operation);
  void run_front(Runtime& runtime, Stream& stream);
  cudaError_t append(Runtime& runtime, const std::shared_ptr<Stream>& stream, Work work);

  std::shared_ptr<Stream> legacy_;
  std::vector<std::shared_ptr<Stream>> streams_;  // all, in order of creation; the legacy stream is the first
  uint64_t next_id_ = 1;
  uint64_t next_sequence_ = 1;
};

// Events of the program; a handle is the address.
class Events {
 public:
  cudaEvent_t create(unsigned flags);
  bool destroy(cudaEvent_t handle);
  Event* find(cudaEvent_t handle);

 private:
  std::vector<std::unique_ptr<Event>> events_;
};

}  // namespace cudart
