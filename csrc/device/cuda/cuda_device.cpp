#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "device/cuda/caching_allocator.h"
#include "device/cuda/check.h"
#include "device/cuda/launch.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kMinComputeCapability = 80;  // mma.sync on bfloat16, ldmatrix, cp.async

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t get() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    check(cudaSetDevice(index_), "selecting the GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~CudaDevice() override {
    cudaStreamSynchronize(stream_);
    allocator_.deallocate(workspace_);
    cudaStreamDestroy(stream_);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  DeviceInfo info() const override;

  void* allocate(size_t num_bytes) override { return allocator_.allocate(num_bytes); }
  void deallocate(void* memory) noexcept override { allocator_.deallocate(memory); }
  void* allocate_host(size_t num_bytes) override {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, num_bytes == 0 ? 1 : num_bytes), "allocating pinned host memory");
    return memory;
  }
  void deallocate_host(void* memory) noexcept override { cudaFreeHost(memory); }
  void* allocate_shared(size_t num_bytes) override {
    void* memory = nullptr;
    check(cudaMallocManaged(&memory, num_bytes == 0 ? 1 : num_bytes, cudaMemAttachGlobal), "allocating shared memory");
    return memory;
  }
  void deallocate_shared(void* memory) noexcept override {
    cudaStreamSynchronize(stream_);  // managed memory is not ordered by the stream
    cudaFree(memory);
  }

  void copy_to_device(void* destination, const void* source, size_t num_bytes) override {
    copy_async(destination, source, num_bytes, cudaMemcpyHostToDevice, "copying to the GPU");
  }
  void copy_to_host(void* destination, const void* source, size_t num_bytes) override {
    copy_async(destination, source, num_bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
  }
  void copy(void* destination, const void* source, size_t num_bytes) override {
    copy_async(destination, source, num_bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
  }
  void fill(void* destination, uint8_t value, size_t num_bytes) override {
    if (num_bytes > 0) check(cudaMemsetAsync(destination, value, num_bytes, stream_), "filling GPU memory");
  }
  void synchronize() override {
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (status == cudaSuccess) return;
    fail(ErrorCode::kDevice, "the GPU failed while running kernels up to ", last_launch(), ": ",
         cudaGetErrorName(status), " (", cudaGetErrorString(status), "); the engine must be restarted");
  }

  void* workspace(size_t num_bytes) override {
    if (num_bytes <= workspace_size_) return workspace_;
    E31_CHECK(!capturing_, kInternal, "the workspace grew inside a graph; run the step once before it is captured");
    allocator_.deallocate(workspace_);
    workspace_ = nullptr;
    workspace_size_ = 0;
    workspace_ = allocator_.allocate(num_bytes);
    workspace_size_ = num_bytes;
    return workspace_;
  }

  void begin_capture() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a graph");
    capturing_ = true;
  }
  std::unique_ptr<DeviceGraph> end_capture() override {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "ending a graph");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "instantiating a graph");
    return std::make_unique<CudaGraph>(executable);
  }
  void launch(DeviceGraph& graph) override {
    note_launch("a graph");
    check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), stream_), "launching a graph");
  }

  void* stream() const override { return stream_; }

 private:
  void copy_async(void* destination, const void* source, size_t num_bytes, cudaMemcpyKind kind, const char* doing) {
    if (num_bytes > 0) check(cudaMemcpyAsync(destination, source, num_bytes, kind, stream_), doing);
  }

  int index_;
  cudaStream_t stream_ = nullptr;
  CachingAllocator allocator_;
  void* workspace_ = nullptr;
  size_t workspace_size_ = 0;
  bool capturing_ = false;
};

DeviceInfo CudaDevice::info() const {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index_), "reading the GPU's properties");
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory");
  return {.name = properties.name,
          .compute_capability = properties.major * 10 + properties.minor,
          .num_multiprocessors = properties.multiProcessorCount,
          .shared_memory_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
          .total_memory = static_cast<int64_t>(total_bytes),
          .free_memory = static_cast<int64_t>(free_bytes)};
}

}  // namespace

std::unique_ptr<Device> open_device(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  E31_CHECK(status == cudaSuccess, kDevice,
            "device \"cuda\" needs an NVIDIA driver for CUDA 13 (580 or newer) and a GPU: ", cudaGetErrorName(status),
            " (", cudaGetErrorString(status), "); use device \"cpu\", or install the driver");
  E31_CHECK(index >= 0 && index < count, kDevice, "there is no GPU number ", index, "; this machine shows ", count,
            " (see CUDA_VISIBLE_DEVICES)");
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "reading the compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "reading the compute capability");
  E31_CHECK(major * 10 + minor >= kMinComputeCapability, kDevice, "GPU number ", index, " has compute capability ",
            major, ".", minor, "; 8.0 (A100, RTX 30) or newer is needed");
  return std::make_unique<CudaDevice>(index);
}

}  // namespace eagle31rt::cuda
