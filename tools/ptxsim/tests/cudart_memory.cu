// Allocation, copies and their bounds.
#include <cstring>

#include "cudart_check.h"
#include "cudart_kernels.cuh"

namespace {

constexpr int kCount = 64;
constexpr size_t kBytes = kCount * sizeof(int);

int* pinned() {
  int* values = nullptr;
  EXPECT_OK(cudaMallocHost(&values, kBytes));
  for (int i = 0; i < kCount; ++i) values[i] = i;
  return values;
}

cudaMemoryType type_of(const void* pointer) {
  cudaPointerAttributes attributes;
  EXPECT_OK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type;
}

TEST(free_checks_its_pointer) {
  int* values = allocate_device<int>(kCount);
  int* host = pinned();
  EXPECT_ERROR(cudaFree(values + 1), cudaErrorInvalidValue);
  EXPECT(report_has("middle of a buffer"));
  EXPECT_ERROR(cudaFreeHost(values), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_OK(cudaFree(values));
  EXPECT_ERROR(cudaFree(values), cudaErrorInvalidValue);
  EXPECT(report_has("freed twice"));
  EXPECT_OK(cudaFreeHost(host));
  EXPECT_OK(cudaFree(nullptr));
  void* nothing = &host;
  EXPECT_OK(cudaMalloc(&nothing, 0));
  EXPECT(nothing == nullptr);
}

TEST(free_waits_for_the_device) {
  int* values = allocate_device<int>(kCount);
  int* managed = nullptr;
  EXPECT_OK(cudaMallocManaged(&managed, kBytes));
  fill_values<<<1, kCount>>>(managed, 3, kCount);
  copy_values<<<1, kCount>>>(values, managed, kCount);
  EXPECT_OK(cudaFree(values));
  EXPECT(managed[0] == 3);
}

TEST(copies_are_checked_against_buffers) {
  int* values = allocate_device<int>(kCount);
  std::vector<int> host(2 * kCount);
  EXPECT_ERROR(cudaMemcpy(values, host.data(), kBytes + 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT(report_has("bytes 0..259 of a buffer of 256 bytes"));
  EXPECT_ERROR(cudaMemcpy(host.data(), values + 1, kBytes, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemcpyAsync(values + kCount, host.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemset(values, 0, kBytes + 1), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemcpy(values, nullptr, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemcpy(values, host.data(), 4, cudaMemcpyKind(9)), cudaErrorInvalidMemcpyDirection);
  EXPECT_OK(cudaMemcpy(values, host.data(), kBytes, cudaMemcpyHostToDevice));
  EXPECT_OK(cudaFree(values));
  EXPECT_ERROR(cudaMemcpy(host.data(), values, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

TEST(copies_check_their_direction) {
  int* values = allocate_device<int>(kCount);
  std::vector<int> host(kCount, 3);
  EXPECT_ERROR(cudaMemcpy(values, host.data(), kBytes, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemcpy(host.data(), values, kBytes, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_OK(cudaMemcpy(values, host.data(), kBytes, cudaMemcpyDefault));
  EXPECT(read_device(values, kCount)[5] == 3);
}

TEST(pageable_source_is_read_at_once_pinned_is_not) {
  cudaStream_t stream = nullptr;
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int *from_pageable = allocate_device<int>(kCount), *from_pinned = allocate_device<int>(kCount);
  std::vector<int> pageable(kCount, 1);
  int* host = pinned();
  EXPECT_OK(cudaMemcpyAsync(from_pageable, pageable.data(), kBytes, cudaMemcpyHostToDevice, stream));
  EXPECT_OK(cudaMemcpyAsync(from_pinned, host, kBytes, cudaMemcpyHostToDevice, stream));
  pageable[0] = 100;
  host[0] = 100;  // too early: the copy has not run
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(read_device(from_pageable, 1)[0] == 1);
  EXPECT(read_device(from_pinned, 1)[0] == 100);
}

TEST(copy_to_pinned_memory_waits_for_the_stream) {
  cudaStream_t stream = nullptr;
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int* values = allocate_device<int>(kCount);
  int* host = pinned();
  std::vector<int> pageable(kCount);
  fill_values<<<1, kCount, 0, stream>>>(values, 9, kCount);
  EXPECT_OK(cudaMemcpyAsync(host, values, kBytes, cudaMemcpyDeviceToHost, stream));
  EXPECT(host[3] == 3);
  EXPECT_OK(cudaMemcpyAsync(pageable.data(), values, kBytes, cudaMemcpyDeviceToHost, stream));  // returns when done
  EXPECT(pageable[3] == 9 && host[3] == 9);
}

TEST(two_dimensional_copies) {
  constexpr int kWidth = 5, kHeight = 4, kPitch = 8;
  int* values = allocate_device<int>(kPitch * (kHeight - 1) + kWidth);
  std::vector<int> host(kWidth * kHeight), back(kWidth * kHeight);
  for (int i = 0; i < kWidth * kHeight; ++i) host[i] = i;
  EXPECT_OK(cudaMemcpy2D(values, kPitch * 4, host.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  EXPECT(read_device(values + kPitch, 1)[0] == kWidth);
  EXPECT_OK(cudaMemcpy2D(back.data(), kWidth * 4, values, kPitch * 4, kWidth * 4, kHeight, cudaMemcpyDeviceToHost));
  EXPECT(back == host);
  EXPECT_ERROR(
      cudaMemcpy2D(values, kPitch * 4, host.data(), kWidth * 4, kWidth * 4, kHeight + 1, cudaMemcpyHostToDevice),
      cudaErrorInvalidValue);
  EXPECT_ERROR(cudaMemcpy2D(values, 8, host.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice),
               cudaErrorInvalidPitchValue);
}

TEST(memory_runs_out_and_is_accounted) {
  size_t free_before, free_after, total;
  EXPECT_OK(cudaMemGetInfo(&free_before, &total));
  void* large = nullptr;
  EXPECT_ERROR(cudaMalloc(&large, total + 1), cudaErrorMemoryAllocation);
  EXPECT(large == nullptr);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_OK(cudaGetLastError());  // not sticky
  int* values = allocate_device<int>(1 << 20);
  EXPECT_OK(cudaMemGetInfo(&free_after, &total));
  EXPECT(free_before - free_after == 4 << 20);
  EXPECT_OK(cudaFree(values));
  EXPECT_OK(cudaMemGetInfo(&free_after, &total));
  EXPECT(free_before == free_after);
}

TEST(asynchronous_free_takes_its_turn) {
  cudaStream_t stream = nullptr;
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int* values = nullptr;
  EXPECT_OK(cudaMallocAsync(&values, kBytes, stream));
  fill_values<<<1, kCount, 0, stream>>>(values, 1, kCount);
  EXPECT_OK(cudaFreeAsync(values, stream));
  EXPECT_ERROR(cudaFreeAsync(values, stream), cudaErrorInvalidValue);
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT_ERROR(cudaFree(values), cudaErrorInvalidValue);
}

TEST(pointer_attributes) {
  int* values = allocate_device<int>(kCount);
  int* host = pinned();
  int* managed = nullptr;
  EXPECT_OK(cudaMallocManaged(&managed, kBytes));
  std::vector<int> pageable(kCount);
  EXPECT(type_of(values + 3) == cudaMemoryTypeDevice);
  EXPECT(type_of(host) == cudaMemoryTypeHost);
  EXPECT(type_of(managed) == cudaMemoryTypeManaged);
  EXPECT(type_of(pageable.data()) == cudaMemoryTypeUnregistered);
  EXPECT_OK(cudaHostRegister(pageable.data(), kBytes, 0));
  EXPECT(type_of(pageable.data()) == cudaMemoryTypeHost);
  EXPECT_ERROR(cudaHostRegister(pageable.data(), kBytes, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_OK(cudaHostUnregister(pageable.data()));
  EXPECT_ERROR(cudaHostUnregister(pageable.data()), cudaErrorHostMemoryNotRegistered);
}

TEST(managed_and_pinned_memory_reach_kernels) {
  int* managed = nullptr;
  EXPECT_OK(cudaMallocManaged(&managed, kBytes));
  int* host = pinned();
  copy_values<<<1, kCount>>>(managed, host, kCount);
  EXPECT_OK(cudaDeviceSynchronize());
  EXPECT(std::memcmp(managed, host, kBytes) == 0);
}

TEST(injected_allocation_failure) {
  ptxsim_fail_malloc(2);
  void *first = nullptr, *second = nullptr, *third = nullptr;
  EXPECT_OK(cudaMalloc(&first, 16));
  EXPECT_ERROR(cudaMallocHost(&second, 16), cudaErrorMemoryAllocation);
  EXPECT_OK(cudaMalloc(&third, 16));
}

TEST(environment_fails_the_second_allocation) {
  void *first = nullptr, *second = nullptr;
  EXPECT_OK(cudaMalloc(&first, 16));
  EXPECT_ERROR(cudaMalloc(&second, 16), cudaErrorMemoryAllocation);
}

TEST(environment_small_memory) {
  size_t free, total;
  EXPECT_OK(cudaMemGetInfo(&free, &total));
  EXPECT(total == 1 << 20);
  void* pointer = nullptr;
  EXPECT_ERROR(cudaMalloc(&pointer, 2 << 20), cudaErrorMemoryAllocation);
}

}  // namespace
