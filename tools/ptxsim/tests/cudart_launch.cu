// Limits of launches, attributes, occupancy, the device, variables, counters.
#include <cstring>

#include "cudart_check.h"
#include "cudart_kernels.cuh"

namespace {

constexpr int kCount = 32;

__device__ int device_table[4] = {1, 2, 3, 4};
__constant__ int constant_table[4];
__managed__ int managed_value = 5;

__global__ void use_variables(int* out) {
  out[threadIdx.x] = device_table[threadIdx.x] * constant_table[threadIdx.x] + managed_value;
  if (threadIdx.x == 0) device_table[0] = 99;
}

__global__ void __launch_bounds__(64) bounded(int* out) { out[threadIdx.x] = 1; }

__global__ void with_shared(int* out) {
  __shared__ int fixed[1024];
  extern __shared__ int dynamic[];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
  out[threadIdx.x] = fixed[threadIdx.x] + dynamic[threadIdx.x];
}

struct Parameters {
  char first;
  double second;
  short third[3];
};

__global__ void many_parameters(char a, Parameters b, short c, long long d, double* out) {
  *out = a + b.first + b.second + b.third[2] + c + d;
}

TEST(launch_limits) {
  int* values = allocate_device<int>(2048);
  const auto launch = [&](dim3 grid, dim3 block, size_t shared = 0) {
    fill_values<<<grid, block, shared>>>(values, 1, 1);
    return cudaGetLastError();
  };
  EXPECT_ERROR(launch(0, 32), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(1, 0), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(1, dim3(64, 32)), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(launch(1, 32, 48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_OK(launch(1, 1024, 48 * 1024));
  EXPECT_OK(launch(dim3(2, 3, 4), dim3(8, 8, 16)));
  bounded<<<1, 65>>>(values);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_ERROR(cudaLaunchKernel(reinterpret_cast<const void*>(&launch), 1, 32, nullptr, 0, nullptr),
               cudaErrorInvalidDeviceFunction);
  EXPECT_OK(cudaDeviceSynchronize());
}

TEST(shared_memory_opt_in) {
  int* values = allocate_device<int>(1024);
  int optin = 0;
  EXPECT_OK(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  EXPECT(optin == 166912);
  const auto allow = [&](int bytes) {
    return cudaFuncSetAttribute(with_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  with_shared<<<1, 1024, 44 * 1024 + 1>>>(values);  // 4 KiB are static
  EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_ERROR(allow(optin - 4096 + 1), cudaErrorInvalidValue);
  EXPECT_OK(allow(optin - 4096));
  cudaGetLastError();
  with_shared<<<1, 1024, 100000>>>(values);
  EXPECT_OK(cudaGetLastError());
  EXPECT(read_device(values, 1024)[1023] == 2);
  cudaFuncAttributes attributes;
  EXPECT_OK(cudaFuncGetAttributes(&attributes, with_shared));
  EXPECT(attributes.sharedSizeBytes == 4096 && attributes.maxDynamicSharedSizeBytes == optin - 4096);
  EXPECT_OK(cudaFuncGetAttributes(&attributes, bounded));
  EXPECT(attributes.maxThreadsPerBlock == 64 && attributes.ptxVersion == 80);
}

TEST(parameters_of_all_sizes) {
  double* out = allocate_device<double>(1);
  many_parameters<<<1, 1>>>(1, {2, 0.5, {0, 0, 4}}, 8, 1LL << 33, out);
  EXPECT_OK(cudaGetLastError());
  EXPECT(read_device(out, 1)[0] == 15.5 + static_cast<double>(1LL << 33));
}

TEST(extended_launch) {
  int* values = allocate_device<int>(kCount);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = kCount;
  config.attrs = attributes;
  config.numAttrs = 1;
  EXPECT_OK(cudaLaunchKernelEx(&config, fill_values, values, 6, kCount));
  EXPECT(read_device(values, kCount)[kCount - 1] == 6);
  config.numAttrs = 2;  // clusters are refused on compute capability 8.0
  EXPECT_ERROR(cudaLaunchKernelEx(&config, fill_values, values, 6, kCount), cudaErrorInvalidClusterSize);
}

TEST(occupancy) {
  int blocks = 0;
  EXPECT_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill_values, 256, 0));
  EXPECT(blocks == 8);  // 2048 threads
  EXPECT_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill_values, 32, 0));
  EXPECT(blocks == 32);  // blocks
  EXPECT_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill_values, 256, 40 * 1024));
  EXPECT(blocks == 4);  // 164 KiB of shared memory, 41 KiB a block
  EXPECT_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 128, 0));
  EXPECT(blocks == 0);
}

TEST(device_variables) {
  int* out = allocate_device<int>(4);
  const int factors[4] = {10, 20, 30, 40};
  EXPECT_OK(cudaMemcpyToSymbol(constant_table, factors, sizeof(factors)));
  managed_value = 7;
  use_variables<<<1, 4>>>(out);
  EXPECT(read_device(out, 4)[3] == 167);
  int first = 0;
  EXPECT_OK(cudaMemcpyFromSymbol(&first, device_table, 4));
  EXPECT(first == 99);
  void* address = nullptr;
  size_t size = 0;
  EXPECT_OK(cudaGetSymbolAddress(&address, device_table));
  EXPECT_OK(cudaGetSymbolSize(&size, device_table));
  EXPECT(size == 16 && read_device(static_cast<int*>(address), 4)[1] == 2);
  EXPECT_ERROR(cudaMemcpyToSymbol(constant_table, factors, 16, 4), cudaErrorInvalidValue);
}

TEST(counters) {
  int* values = allocate_device<int>(kCount);
  ptxsim_reset_counters();
  fill_values<<<1, kCount>>>(values, 1, kCount);
  fill_values<<<1, kCount>>>(values, 1, kCount);
  EXPECT_OK(cudaDeviceSynchronize());
  const std::string json = ptxsim_counters_json("fill_values");
  EXPECT(json.find("\"fill_values(int*, int, int)\": {\"launches\": 2,") != std::string::npos);
  EXPECT(json.find("\"global_store_bytes\": 256,") != std::string::npos);
  EXPECT(json.find("\"unique_store_sectors\": 8,") != std::string::npos);
  EXPECT(std::string(ptxsim_counters_json("nothing")).find("launches") == std::string::npos);
}

TEST(device) {
  int count = 0, device = -1, major = 0, version = 0;
  cudaDeviceProp properties;
  EXPECT_OK(cudaGetDeviceCount(&count));
  EXPECT_OK(cudaGetDevice(&device));
  EXPECT_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  EXPECT_OK(cudaGetDeviceProperties(&properties, 0));
  EXPECT(count == 1 && device == 0 && major == 8);
  EXPECT(std::strcmp(properties.name, "NVIDIA A100-SXM4-80GB") == 0 && properties.multiProcessorCount == 108);
  EXPECT_ERROR(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_ERROR(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  EXPECT_OK(cudaDriverGetVersion(&version));
  EXPECT(version == 13000);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(environment_no_driver) {
  int count = 7, version = 7;
  EXPECT_ERROR(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_OK(cudaDriverGetVersion(&version));
  EXPECT(version == 0);
  EXPECT_ERROR(cudaFree(nullptr), cudaErrorInsufficientDriver);
}

TEST(environment_no_gpu) {
  int count = 7;
  EXPECT_ERROR(cudaGetDeviceCount(&count), cudaErrorNoDevice);
}

TEST(environment_too_old) {
  fill_values<<<1, 1>>>(nullptr, 1, 1);
  EXPECT_ERROR(cudaGetLastError(), cudaErrorNoKernelImageForDevice);
  EXPECT(report_has("compute_80") && report_has("compute capability 75"));
}

TEST(environment_h100) {
  cudaFuncAttributes attributes;
  EXPECT_OK(cudaFuncGetAttributes(&attributes, fill_values));
  EXPECT(attributes.ptxVersion == 90 && attributes.binaryVersion == 90);
  int* values = allocate_device<int>(kCount);
  fill_values<<<1, kCount>>>(values, 3, kCount);
  EXPECT(read_device(values, kCount)[31] == 3);
}

}  // namespace
