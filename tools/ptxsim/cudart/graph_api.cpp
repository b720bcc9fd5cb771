// Exports: stream capture and graphs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "runtime.h"

using cudart::call;
using cudart::Graph;
using cudart::Node;
using cudart::Runtime;

namespace {

cudaGraphNode_t handle(const Node& node) { return reinterpret_cast<cudaGraphNode_t>(const_cast<Node*>(&node)); }

cudaStreamCaptureStatus status(const cudart::Stream& stream) {
  if (!stream.capture) return cudaStreamCaptureStatusNone;
  return stream.capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

// An update may change arguments, not the shape: same nodes of the same types in the same order.
bool same_topology(const std::deque<Node>& left, const std::deque<Node>& right) {
  return std::ranges::equal(left, right, [](const Node& a, const Node& b) {
    return cudart::node_type(a) == cudart::node_type(b) && a.dependencies == b.dependencies;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call(stream,
              [&](Runtime& state, const auto& queue) { return state.graphs.begin_capture(state, queue, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call(stream, [&](Runtime& state, const auto& queue) { return state.graphs.end_capture(state, queue, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* result) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    if (state.streams.is_legacy(*queue)) {
      const cudaError_t error = state.streams.legacy_in_capture(state);
      if (error != cudaSuccess) return error;
    }
    *result = status(*queue);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* result, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  return call(stream, [&](Runtime&, const auto& queue) {
    static thread_local std::vector<cudaGraphNode_t> tail;
    tail.clear();
    *result = status(*queue);
    if (edges) *edges = nullptr;
    if (*result == cudaStreamCaptureStatusActive) {
      if (id) *id = queue->capture->id;
      if (graph) *graph = reinterpret_cast<cudaGraph_t>(queue->capture->graph.get());
      for (size_t index : queue->capture_tail) tail.push_back(handle(queue->capture->graph->nodes[index]));
    }
    if (dependencies) *dependencies = tail.data();
    if (num_dependencies) *num_dependencies = tail.size();
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call([&](Runtime&) {
    std::swap(*mode, cudart::thread_capture_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  return call([&](Runtime& state) {
    const Graph* found = state.graphs.find(graph);
    if (!found || !num_nodes) return cudaErrorInvalidValue;
    if (nodes) {
      for (size_t i = 0; i < *num_nodes; ++i) nodes[i] = i < found->nodes.size() ? handle(found->nodes[i]) : nullptr;
      *num_nodes = std::min(*num_nodes, found->nodes.size());
    } else {
      *num_nodes = found->nodes.size();
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call([&](Runtime&) {
    if (!node || !type) return cudaErrorInvalidValue;
    *type = cudart::node_type(*reinterpret_cast<const Node*>(node));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return call([&](Runtime& state) {
    const Graph* found = state.graphs.find(graph);
    if (!found || !exec) return cudaErrorInvalidValue;
    *exec = state.graphs.instantiate(*found);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto&) {
    return state.graphs.find(exec) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call(stream, [&](Runtime& state, const auto& queue) {
    const cudart::GraphExec* found = state.graphs.find(exec);
    return found ? state.streams.submit(state, queue, cudart::GraphWork{found->nodes}) : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  return call([&](Runtime& state) {
    cudart::GraphExec* found = state.graphs.find(exec);
    const Graph* source = state.graphs.find(graph);
    if (!found || !source) return cudaErrorInvalidValue;
    const bool possible = same_topology(*found->nodes, source->nodes);
    if (info) {
      *info = {};
      info->result = possible ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    }
    if (!possible) return cudaErrorGraphExecUpdateFailure;
    found->nodes = std::make_shared<const std::deque<Node>>(source->nodes);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return call([&](Runtime& state) { return state.graphs.remove(exec) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Runtime& state) { return state.graphs.remove(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}

}  // extern "C"
