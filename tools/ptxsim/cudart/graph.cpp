#include "graph.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "runtime.h"

namespace cudart {
namespace {

// Everything captured must lead to the stream that began: its tail has to reach every node without successor.
bool joined(const Graph& graph, const std::vector<size_t>& tail) {
  std::vector<bool> has_successor(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    for (size_t dependency : node.dependencies) has_successor[dependency] = true;
  }
  for (size_t index = 0; index < graph.nodes.size(); ++index) {
    if (!has_successor[index] && std::find(tail.begin(), tail.end(), index) == tail.end()) return false;
  }
  return true;
}

// Recorded order, or a random one that the dependencies allow.
std::vector<size_t> order(const std::deque<Node>& nodes, const ptxsim::Options& options) {
  std::vector<size_t> result(nodes.size());
  std::iota(result.begin(), result.end(), size_t{0});
  if (!options.shuffle) return result;
  std::mt19937_64 random(options.seed);
  std::vector<size_t> waiting(nodes.size()), ready;
  std::vector<std::vector<size_t>> successors(nodes.size());
  for (size_t index = 0; index < nodes.size(); ++index) {
    waiting[index] = nodes[index].dependencies.size();
    for (size_t dependency : nodes[index].dependencies) successors[dependency].push_back(index);
    if (waiting[index] == 0) ready.push_back(index);
  }
  for (size_t& next : result) {
    std::swap(ready[random() % ready.size()], ready.back());
    next = ready.back();
    ready.pop_back();
    for (size_t successor : successors[next]) {
      if (--waiting[successor] == 0) ready.push_back(successor);
    }
  }
  return result;
}

}  // namespace

void run_nodes(Runtime& runtime, const std::deque<Node>& nodes) {
  for (const size_t index : order(nodes, runtime.options)) {
    if (runtime.sticky != cudaSuccess) return;
    execute(runtime, nodes[index].work);
  }
}

cudaGraphNodeType node_type(const Node& node) {
  if (std::holds_alternative<KernelWork>(node.work)) return cudaGraphNodeTypeKernel;
  if (std::holds_alternative<CopyWork>(node.work)) return cudaGraphNodeTypeMemcpy;
  if (std::holds_alternative<FillWork>(node.work)) return cudaGraphNodeTypeMemset;
  if (std::holds_alternative<HostWork>(node.work)) return cudaGraphNodeTypeHost;
  if (std::holds_alternative<GraphWork>(node.work)) return cudaGraphNodeTypeGraph;
  return cudaGraphNodeTypeEmpty;
}

cudaError_t Graphs::begin_capture(Runtime& runtime, const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode) {
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (runtime.streams.is_legacy(*stream)) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_id_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  stream->capture = std::move(capture);
  stream->capture_tail.clear();
  return cudaSuccess;
}

cudaError_t Graphs::end_capture(Runtime& runtime, const std::shared_ptr<Stream>& stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin.lock() != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const std::vector<size_t> tail = stream->capture_tail;
  for (const std::shared_ptr<Stream>& member : runtime.streams.capturing(*capture)) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  std::unique_ptr<Graph> captured = std::move(capture->graph);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined(*captured, tail)) return cudaErrorStreamCaptureUnjoined;
  *graph = add(std::move(captured));
  return cudaSuccess;
}

cudaGraph_t Graphs::add(std::unique_ptr<Graph> graph) {
  graphs_.push_back(std::move(graph));
  return reinterpret_cast<cudaGraph_t>(graphs_.back().get());
}

Graph* Graphs::find(cudaGraph_t handle) {
  for (const auto& graph : graphs_) {
    if (reinterpret_cast<cudaGraph_t>(graph.get()) == handle) return graph.get();
  }
  return nullptr;
}

bool Graphs::remove(cudaGraph_t handle) {
  return std::erase_if(graphs_,
                       [&](const auto& graph) { return reinterpret_cast<cudaGraph_t>(graph.get()) == handle; }) != 0;
}

cudaGraphExec_t Graphs::instantiate(const Graph& graph) {
  execs_.push_back(std::make_unique<GraphExec>(std::make_shared<const std::deque<Node>>(graph.nodes)));
  return reinterpret_cast<cudaGraphExec_t>(execs_.back().get());
}

GraphExec* Graphs::find(cudaGraphExec_t handle) {
  for (const auto& exec : execs_) {
    if (reinterpret_cast<cudaGraphExec_t>(exec.get()) == handle) return exec.get();
  }
  return nullptr;
}

bool Graphs::remove(cudaGraphExec_t handle) {
  return std::erase_if(execs_,
                       [&](const auto& exec) { return reinterpret_cast<cudaGraphExec_t>(exec.get()) == handle; }) != 0;
}

cudaError_t forbid_in_capture(Runtime& runtime, const char* call, bool always) {
  bool forbidden = false;
  for (const std::shared_ptr<Stream>& stream : runtime.streams.all()) {
    if (!stream->capture) continue;
    Capture& capture = *stream->capture;
    const bool own = capture.thread == std::this_thread::get_id();
    const bool unsafe =
        capture.mode == cudaStreamCaptureModeGlobal || (capture.mode == cudaStreamCaptureModeThreadLocal && own);
    if (!always && (!unsafe || thread_capture_mode == cudaStreamCaptureModeRelaxed)) continue;
    capture.invalid = true;
    forbidden = true;
  }
  if (!forbidden) return cudaSuccess;
  runtime.explain(std::string(call) + " is not permitted while a stream is capturing");
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace cudart
