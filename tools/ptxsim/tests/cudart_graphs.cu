// Capture, instantiation, replay.
#include "cudart_check.h"
#include "cudart_kernels.cuh"

namespace {

constexpr int kCount = 32;

struct Streams {
  cudaStream_t main = nullptr, side = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  Streams() {
    EXPECT_OK(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking));
    EXPECT_OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    EXPECT_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    EXPECT_OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  }
};

cudaStreamCaptureStatus status(cudaStream_t stream) {
  cudaStreamCaptureStatus result;
  EXPECT_OK(cudaStreamIsCapturing(stream, &result));
  return result;
}

// Whether EndCapture says that the capture was void.
void expect_void(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  EXPECT(status(stream) == cudaStreamCaptureStatusInvalidated);
  EXPECT_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT(graph == nullptr && status(stream) == cudaStreamCaptureStatusNone);
}

TEST(replay_reads_changed_input) {
  const Streams streams;
  int *input = allocate_device<int>(kCount), *output = allocate_device<int>(kCount);
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
  EXPECT(status(streams.main) == cudaStreamCaptureStatusActive);
  EXPECT_OK(cudaMemsetAsync(output, 0, kCount * sizeof(int), streams.main));
  copy_values<<<1, kCount, 0, streams.main>>>(output, input, kCount);
  add_values<<<1, kCount, 0, streams.main>>>(output, 1, kCount);
  cudaGraph_t graph = nullptr;
  EXPECT_OK(cudaStreamEndCapture(streams.main, &graph));
  size_t num_nodes = 0;
  EXPECT_OK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  EXPECT(num_nodes == 3);
  cudaGraphNode_t nodes[3];
  cudaGraphNodeType type;
  EXPECT_OK(cudaGraphGetNodes(graph, nodes, &num_nodes));
  EXPECT_OK(cudaGraphNodeGetType(nodes[0], &type));
  EXPECT(type == cudaGraphNodeTypeMemset);
  cudaGraphExec_t exec = nullptr;
  EXPECT_OK(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_OK(cudaGraphDestroy(graph));
  for (int value : {10, 20}) {
    fill_values<<<1, kCount, 0, streams.main>>>(input, value, kCount);
    EXPECT_OK(cudaGraphLaunch(exec, streams.main));
    EXPECT_OK(cudaStreamSynchronize(streams.main));
    EXPECT(read_device(output, kCount)[kCount - 1] == value + 1);
  }
  EXPECT_OK(cudaGraphExecDestroy(exec));
  EXPECT_ERROR(cudaGraphLaunch(exec, streams.main), cudaErrorInvalidValue);
}

TEST(capture_runs_nothing) {
  const Streams streams;
  int* values = nullptr;
  EXPECT_OK(cudaMallocManaged(&values, kCount * sizeof(int)));
  values[0] = 7;
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeThreadLocal));
  fill_values<<<1, kCount, 0, streams.main>>>(values, 1, kCount);
  cudaGraph_t graph = nullptr;
  EXPECT_OK(cudaStreamEndCapture(streams.main, &graph));
  EXPECT_OK(cudaDeviceSynchronize());
  EXPECT(values[0] == 7);
}

TEST(forked_stream_is_captured_and_must_join) {
  const Streams streams;
  int* values = allocate_device<int>(kCount);
  for (const bool join : {true, false}) {
    EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
    fill_values<<<1, kCount, 0, streams.main>>>(values, 1, kCount);
    EXPECT_OK(cudaEventRecord(streams.fork, streams.main));
    EXPECT_OK(cudaStreamWaitEvent(streams.side, streams.fork, 0));
    add_values<<<1, kCount, 0, streams.side>>>(values, 5, kCount);
    EXPECT(status(streams.side) == cudaStreamCaptureStatusActive);
    EXPECT_OK(cudaEventRecord(streams.join, streams.side));
    if (join) EXPECT_OK(cudaStreamWaitEvent(streams.main, streams.join, 0));
    cudaGraph_t graph = nullptr;
    EXPECT_ERROR(cudaStreamEndCapture(streams.side, &graph), cudaErrorStreamCaptureUnmatched);
    EXPECT_ERROR(cudaStreamEndCapture(streams.main, &graph), join ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    EXPECT(status(streams.side) == cudaStreamCaptureStatusNone);
    if (!join) continue;
    cudaGraphExec_t exec = nullptr;
    EXPECT_OK(cudaGraphInstantiate(&exec, graph, 0));
    EXPECT_OK(cudaGraphLaunch(exec, streams.main));
    EXPECT_OK(cudaStreamSynchronize(streams.main));
    EXPECT(read_device(values, kCount)[0] == 6);
  }
}

TEST(waiting_calls_void_a_capture) {
  const Streams streams;
  int* values = allocate_device<int>(kCount);
  const auto begin = [&] {
    EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
    fill_values<<<1, kCount, 0, streams.main>>>(values, 1, kCount);
  };
  begin();
  EXPECT_ERROR(cudaStreamSynchronize(streams.main), cudaErrorStreamCaptureUnsupported);
  EXPECT_ERROR(cudaMemsetAsync(values, 0, 4, streams.main), cudaErrorStreamCaptureInvalidated);
  expect_void(streams.main);
  begin();
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  expect_void(streams.main);
  begin();
  void* pointer = nullptr;
  EXPECT_ERROR(cudaMalloc(&pointer, 4), cudaErrorStreamCaptureUnsupported);
  expect_void(streams.main);
  begin();
  int host = 0;
  EXPECT_ERROR(cudaMemcpy(&host, values, 4, cudaMemcpyDeviceToHost), cudaErrorStreamCaptureUnsupported);
  expect_void(streams.main);
}

TEST(relaxed_capture_allows_allocation) {
  const Streams streams;
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeRelaxed));
  int* values = allocate_device<int>(kCount);
  cudaGraph_t graph = nullptr;
  EXPECT_OK(cudaStreamEndCapture(streams.main, &graph));
  EXPECT_OK(cudaFree(values));
}

TEST(legacy_stream_voids_the_capture_of_a_blocking_stream) {
  int* values = allocate_device<int>(kCount);
  cudaStream_t stream = nullptr;
  EXPECT_OK(cudaStreamCreate(&stream));
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
  expect_void(stream);
  EXPECT_ERROR(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
}

TEST(events_do_not_cross_the_border_of_a_capture) {
  const Streams streams;
  EXPECT_OK(cudaEventRecord(streams.fork, streams.side));
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
  EXPECT_ERROR(cudaStreamWaitEvent(streams.main, streams.fork, 0), cudaErrorStreamCaptureIsolation);
  expect_void(streams.main);
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
  EXPECT_OK(cudaEventRecord(streams.join, streams.main));
  EXPECT_ERROR(cudaEventSynchronize(streams.join), cudaErrorCapturedEvent);
  expect_void(streams.main);
}

TEST(ended_captures_leave_nothing_behind) {
  const Streams streams;
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
  EXPECT_OK(cudaEventRecord(streams.fork, streams.main));
  EXPECT_ERROR(cudaStreamSynchronize(streams.main), cudaErrorStreamCaptureUnsupported);
  expect_void(streams.main);
  EXPECT_ERROR(cudaStreamWaitEvent(streams.side, streams.fork, 0), cudaErrorCapturedEvent);
  EXPECT(status(streams.side) == cudaStreamCaptureStatusNone);
  EXPECT_OK(cudaEventRecord(streams.fork, streams.main));
  EXPECT_OK(cudaStreamWaitEvent(streams.side, streams.fork, 0));
  EXPECT_OK(cudaDeviceSynchronize());
}

TEST(destroying_the_origin_ends_a_capture) {
  const Streams streams;
  EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
  EXPECT_OK(cudaEventRecord(streams.fork, streams.main));
  EXPECT_OK(cudaStreamWaitEvent(streams.side, streams.fork, 0));
  EXPECT_OK(cudaStreamDestroy(streams.main));
  EXPECT(status(streams.side) == cudaStreamCaptureStatusNone);
  EXPECT_OK(cudaDeviceSynchronize());
}

TEST(update_changes_arguments_not_shape) {
  const Streams streams;
  int* values = allocate_device<int>(kCount);
  const auto capture = [&](int value, int times) {
    EXPECT_OK(cudaStreamBeginCapture(streams.main, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < times; ++i) fill_values<<<1, kCount, 0, streams.main>>>(values, value, kCount);
    cudaGraph_t graph = nullptr;
    EXPECT_OK(cudaStreamEndCapture(streams.main, &graph));
    return graph;
  };
  cudaGraphExec_t exec = nullptr;
  EXPECT_OK(cudaGraphInstantiate(&exec, capture(1, 2), 0));
  cudaGraphExecUpdateResultInfo info;
  EXPECT_ERROR(cudaGraphExecUpdate(exec, capture(2, 3), &info), cudaErrorGraphExecUpdateFailure);
  EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  int* copy = nullptr;
  EXPECT_OK(cudaMallocManaged(&copy, sizeof(int)));
  EXPECT_OK(cudaGraphLaunch(exec, streams.main));
  copy_values<<<1, 1, 0, streams.main>>>(copy, values, 1);
  EXPECT_OK(cudaGraphExecUpdate(exec, capture(2, 2), &info));
  EXPECT_OK(cudaGraphLaunch(exec, streams.main));
  EXPECT_OK(cudaStreamSynchronize(streams.main));
  EXPECT(*copy == 1);  // the launch before the update keeps its arguments
  EXPECT(read_device(values, 1)[0] == 2);
}

}  // namespace
