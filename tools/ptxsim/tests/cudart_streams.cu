// Streams run when somebody waits; events order them.
#include <thread>

#include "cudart_check.h"
#include "cudart_kernels.cuh"

namespace {

constexpr int kCount = 64;

cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

cudaEvent_t make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  EXPECT_OK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

int* make_managed() {
  int* values = nullptr;
  EXPECT_OK(cudaMallocManaged(&values, kCount * sizeof(int)));
  for (int i = 0; i < kCount; ++i) values[i] = 7;
  return values;
}

TEST(work_waits_for_synchronisation) {
  int* values = make_managed();
  const cudaStream_t stream = make_stream();
  fill_values<<<1, kCount, 0, stream>>>(values, 1, kCount);
  EXPECT(values[0] == 7);
  EXPECT_ERROR(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(values[0] == 1 && values[kCount - 1] == 1);
  EXPECT_OK(cudaStreamQuery(stream));
}

TEST(synchronising_one_stream_leaves_others_alone) {
  int *first = make_managed(), *second = make_managed();
  const cudaStream_t a = make_stream(), b = make_stream();
  fill_values<<<1, kCount, 0, a>>>(first, 1, kCount);
  fill_values<<<1, kCount, 0, b>>>(second, 2, kCount);
  EXPECT_OK(cudaStreamSynchronize(b));
  EXPECT(first[0] == 7 && second[0] == 2);
  EXPECT_OK(cudaDeviceSynchronize());
  EXPECT(first[0] == 1);
}

TEST(polling_a_stream_ends) {
  int* values = make_managed();
  const cudaStream_t stream = make_stream();
  for (int i = 0; i < 3; ++i) add_values<<<1, kCount, 0, stream>>>(values, 1, kCount);
  int polls = 0;
  while (cudaStreamQuery(stream) == cudaErrorNotReady && polls < 100) ++polls;
  EXPECT(polls == 3 && values[5] == 10);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorNotReady);
}

TEST(event_makes_a_stream_wait_for_another) {
  int *source = make_managed(), *target = make_managed();
  const cudaStream_t producer = make_stream(), consumer = make_stream();
  const cudaEvent_t event = make_event(cudaEventDisableTiming);
  fill_values<<<1, kCount, 0, producer>>>(source, 3, kCount);
  EXPECT_OK(cudaEventRecord(event, producer));
  fill_values<<<1, kCount, 0, producer>>>(source, 4, kCount);  // after the event: the consumer need not see it
  EXPECT_OK(cudaStreamWaitEvent(consumer, event, 0));
  copy_values<<<1, kCount, 0, consumer>>>(target, source, kCount);
  EXPECT_OK(cudaStreamSynchronize(consumer));
  EXPECT(target[0] == 3);
}

TEST(missing_event_shows_as_stale_data) {
  int *source = make_managed(), *target = make_managed();
  const cudaStream_t producer = make_stream(), consumer = make_stream();
  fill_values<<<1, kCount, 0, producer>>>(source, 3, kCount);
  copy_values<<<1, kCount, 0, consumer>>>(target, source, kCount);
  EXPECT_OK(cudaStreamSynchronize(consumer));
  EXPECT(target[0] == 7);
}

TEST(legacy_stream_orders_blocking_streams_only) {
  int *source = make_managed(), *target = make_managed(), *aside = make_managed();
  const cudaStream_t blocking = make_stream(cudaStreamDefault), free = make_stream();
  fill_values<<<1, kCount, 0, blocking>>>(source, 3, kCount);
  fill_values<<<1, kCount, 0, free>>>(aside, 3, kCount);
  copy_values<<<1, kCount>>>(target, source, kCount);
  fill_values<<<1, kCount, 0, blocking>>>(source, 5, kCount);  // waits for the copy
  EXPECT_OK(cudaStreamSynchronize(blocking));
  EXPECT(target[0] == 3 && source[0] == 5 && aside[0] == 7);
}

TEST(event_query_and_time) {
  int* values = make_managed();
  const cudaEvent_t start = make_event(), end = make_event(), untimed = make_event(cudaEventDisableTiming);
  float milliseconds = -1;
  EXPECT_OK(cudaEventQuery(end));  // never recorded
  EXPECT_ERROR(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  EXPECT_OK(cudaEventRecord(start));
  add_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_OK(cudaEventRecord(end));
  EXPECT_ERROR(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  EXPECT_ERROR(cudaEventQuery(end), cudaErrorNotReady);
  EXPECT_OK(cudaEventSynchronize(end));
  EXPECT_OK(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT(milliseconds > 0);
  EXPECT_OK(cudaEventRecord(untimed));
  EXPECT_OK(cudaEventSynchronize(untimed));
  EXPECT_ERROR(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_OK(cudaEventDestroy(end));
  EXPECT_ERROR(cudaEventDestroy(end), cudaErrorInvalidResourceHandle);
}

TEST(destroyed_stream_still_finishes) {
  int* values = make_managed();
  const cudaStream_t stream = make_stream();
  fill_values<<<1, kCount, 0, stream>>>(values, 1, kCount);
  EXPECT_OK(cudaStreamDestroy(stream));
  EXPECT_ERROR(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_ERROR(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_OK(cudaDeviceSynchronize());
  EXPECT(values[0] == 1);
}

TEST(host_function_takes_its_turn) {
  int* values = make_managed();
  const cudaStream_t stream = make_stream();
  static int seen;
  static cudaError_t inside;
  seen = 0;
  fill_values<<<1, kCount, 0, stream>>>(values, 9, kCount);
  EXPECT_OK(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        seen = *static_cast<int*>(data);
        inside = cudaDeviceSynchronize();
      },
      values));
  fill_values<<<1, kCount, 0, stream>>>(values, 8, kCount);
  EXPECT(seen == 0);
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(seen == 9 && values[0] == 8);
  EXPECT(inside == cudaErrorNotPermitted);
}

TEST(threads_have_their_own_streams_and_errors) {
  int* values = make_managed();
  fill_values<<<1, kCount, 0, cudaStreamPerThread>>>(values, 1, kCount);
  std::thread([&] {
    EXPECT_OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT(values[0] == 7);  // the work of the other thread
    EXPECT_ERROR(cudaSetDevice(3), cudaErrorInvalidDevice);
  }).join();
  EXPECT_OK(cudaGetLastError());
  EXPECT_OK(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT(values[0] == 1);
}

TEST(polling_ends_after_an_error) {
  int* values = make_managed();
  const cudaEvent_t event = make_event();
  ptxsim_fail_launch("fill_values", 1);
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_OK(cudaEventRecord(event));
  EXPECT_ERROR(cudaEventSynchronize(event), cudaErrorLaunchFailure);
  ptxsim_reset_error();
  EXPECT_OK(cudaEventQuery(event));
}

TEST(environment_eager_runs_at_once) {
  int* values = make_managed();
  fill_values<<<1, kCount, 0, make_stream()>>>(values, 1, kCount);
  EXPECT(values[0] == 1);
}

}  // namespace
