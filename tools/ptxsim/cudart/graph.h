// Graphs: captured work, kept as a list of nodes in an order that respects their dependencies.
#pragma once

#include <driver_types.h>

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "work.h"

namespace cudart {

struct Node {
  Work work;
  std::vector<size_t> dependencies;  // indices of earlier nodes
};

struct Graph {
  std::deque<Node> nodes;  // a node's address is its handle
};

struct GraphExec {
  std::shared_ptr<const std::deque<Node>> nodes;
};

// Runs every node once, in recorded order, or with a seed in a random order that the dependencies allow.
void run_nodes(Runtime& runtime, const std::deque<Node>& nodes);

// A capture in progress. It belongs to the stream that began it; streams that wait on its events join.
struct Capture {
  uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::weak_ptr<Stream> origin;
  bool invalid = false;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();  // null once it has ended
};

cudaGraphNodeType node_type(const Node& node);

class Graphs {
 public:
  cudaError_t begin_capture(Runtime& runtime, const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(Runtime& runtime, const std::shared_ptr<Stream>& stream, cudaGraph_t* graph);

  cudaGraph_t add(std::unique_ptr<Graph> graph);
  Graph* find(cudaGraph_t handle);
  bool remove(cudaGraph_t handle);

  cudaGraphExec_t instantiate(const Graph& graph);
  GraphExec* find(cudaGraphExec_t handle);
  bool remove(cudaGraphExec_t handle);

 private:
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<std::unique_ptr<GraphExec>> execs_;
  uint64_t next_capture_id_ = 1;
};

// What a call that is not allowed during a capture returns: cudaSuccess if no capture forbids it, else
// cudaErrorStreamCaptureUnsupported, and the captures that forbid it are void from then on.
// `always`: a call that waits for the whole device, which no capture mode allows.
cudaError_t forbid_in_capture(Runtime& runtime, const char* call, bool always = false);

}  // namespace cudart
