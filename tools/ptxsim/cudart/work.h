// What can stand in a stream's queue or in a graph.
#pragma once

#include <driver_types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

#include "ptxsim.h"
#include "registry.h"

namespace cudart {

struct Runtime;
struct Stream;
struct Node;  // graph.h

// One recording of an event; an event that is recorded again gets a new one, and whoever waits keeps the old one.
struct Recording {
  std::shared_ptr<Stream> stream;
  uint64_t sequence = 0;
  bool done = false;
  std::chrono::steady_clock::time_point when;
};

struct KernelWork {
  Function* function;
  ptxsim::Module::LaunchConfig config;
  std::vector<std::byte> parameters;
};

// `height` rows of `width` bytes. `staged` holds the source if it was pageable memory of the host, which is read when
// the copy is queued.
struct CopyWork {
  void* destination;
  size_t destination_pitch;
  const void* source;
  size_t source_pitch;
  size_t width, height;
  std::shared_ptr<std::vector<std::byte>> staged;
};

struct FillWork {
  void* destination;
  size_t pitch;
  unsigned char value;
  size_t width, height;
};

struct HostWork {
  void (*function)(void*);
  void* data;
};

struct ReleaseWork {
  void* start;
};

struct RecordWork {
  std::shared_ptr<Recording> recording;
};

struct WaitWork {
  std::shared_ptr<Recording> recording;
};

// The nodes as they were when the graph was launched: a later update does not reach them.
struct GraphWork {
  std::shared_ptr<const std::deque<Node>> nodes;
};

using Work = std::variant<KernelWork, CopyWork, FillWork, HostWork, ReleaseWork, RecordWork, WaitWork, GraphWork>;

// Runs it now. An error becomes the device's sticky error.
void execute(Runtime& runtime, const Work& work);

// Bytes from the first to past the last of `height` rows.
inline size_t span(size_t pitch, size_t width, size_t height) { return height ? pitch * (height - 1) + width : 0; }

}  // namespace cudart
