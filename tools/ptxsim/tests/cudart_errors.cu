// Errors: names, stickiness, reports, fault injection.
#include <cstring>

#include "cudart_check.h"
#include "cudart_kernels.cuh"

namespace {

constexpr int kCount = 32;

__global__ void write_far(int* out) { out[1000000] = 1; }

__global__ void read_misaligned(const char* bytes, int* out) { *out = *reinterpret_cast<const int*>(bytes + 1); }

__global__ void unordered_exchange(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[63 - threadIdx.x];
}

__global__ void read_unwritten(int* out) {
  __shared__ int values[64];
  if (threadIdx.x == 0) values[0] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

TEST(names_and_texts) {
  EXPECT(std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
  EXPECT(std::strcmp(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered") == 0);
  EXPECT(std::strcmp(cudaGetErrorString(cudaSuccess), "no error") == 0);
  EXPECT(std::strcmp(cudaGetErrorString(cudaError_t(12345)), "unrecognized error code") == 0);
}

TEST(illegal_address_is_sticky) {
  int* values = allocate_device<int>(kCount);
  write_far<<<1, 1>>>(values);
  EXPECT_OK(cudaGetLastError());  // the launch itself is good
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_ERROR(cudaMalloc(&pointer, 4), cudaErrorIllegalAddress);
  EXPECT_ERROR(cudaFree(values), cudaErrorIllegalAddress);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT(report_has("out-of-bounds") && report_has("write_far(int*)"));
  EXPECT(report_has("cudart_errors.cu"));
  ptxsim_reset_error();
  EXPECT_OK(cudaDeviceSynchronize());
  EXPECT(std::strlen(ptxsim_last_report()) == 0);
  EXPECT(read_device(values, 1)[0] == -1);  // what was queued behind the error never ran
  EXPECT_OK(cudaFree(values));
}

TEST(misaligned_address) {
  char* bytes = allocate_device<char>(64);
  EXPECT_OK(cudaMemset(bytes, 0, 64));
  read_misaligned<<<1, 1>>>(bytes, reinterpret_cast<int*>(bytes));
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
  EXPECT(report_has("misaligned") && report_has("read_misaligned"));
}

TEST(use_after_free) {
  int* values = allocate_device<int>(kCount);
  EXPECT_OK(cudaFree(values));
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_ERROR(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
}

TEST(race_mode_reports_a_race) {
  int* values = allocate_device<int>(64);
  unordered_exchange<<<1, 64>>>(values);
  EXPECT_OK(cudaDeviceSynchronize());
  ptxsim_set_options(-1, 1, 0);
  unordered_exchange<<<1, 64>>>(values);
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT(report_has("race") && report_has("cudart_errors.cu"));
  ptxsim_set_options(-1, 0, 0);
}

TEST(uninitialised_mode_reports_a_read) {
  int* values = allocate_device<int>(64);
  read_unwritten<<<1, 64>>>(values);
  EXPECT_OK(cudaDeviceSynchronize());
  ptxsim_set_options(-1, 0, 1);
  read_unwritten<<<1, 64>>>(values);
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT(report_has("uninitialised"));
  ptxsim_set_options(-1, 0, 0);
}

TEST(injected_launch_failure) {
  int* values = allocate_device<int>(kCount);
  ptxsim_fail_launch("add_values", 2);
  fill_values<<<1, kCount>>>(values, 1, kCount);
  add_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_OK(cudaDeviceSynchronize());
  add_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_OK(cudaGetLastError());
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT(report_has("add_values(int*, int, int)"));
  ptxsim_reset_error();
  add_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT(read_device(values, 1)[0] == 3);
}

TEST(device_reset_revives_the_device) {
  int* values = allocate_device<int>(kCount);
  write_far<<<1, 1>>>(values);
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_OK(cudaDeviceReset());
  EXPECT_OK(cudaGetLastError());
  EXPECT_ERROR(cudaFree(values), cudaErrorInvalidValue);
}

TEST(what_is_not_simulated_says_so) {
  void* memory = nullptr;
  EXPECT_ERROR(cudaIpcOpenMemHandle(&memory, {}, 0), cudaErrorNotSupported);
  EXPECT(report_has("cudaIpcOpenMemHandle"));
  cudaDriverEntryPointQueryResult result;
  EXPECT_OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &memory, 12000, cudaEnableDefault, &result));
  EXPECT(memory == nullptr && result == cudaDriverEntryPointSymbolNotFound);
}

TEST(environment_aborts) {
  int* values = allocate_device<int>(kCount);
  write_far<<<1, 1>>>(values);
  cudaDeviceSynchronize();
  note_failure(__FILE__, __LINE__, "the process lived on");
}

TEST(environment_fails_a_launch) {
  int* values = allocate_device<int>(kCount);
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}

}  // namespace
