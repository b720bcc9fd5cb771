#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

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
    cudaSetDevice(index_);
    cudaStreamSynchronize(stream_);
    allocator_.deallocate(workspace_);
    cudaStreamDestroy(stream_);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  DeviceInfo info() const override;

  void make_current() noexcept override { cudaSetDevice(index_); }  // an error shows at the first use
  bool is_host() const override { return false; }

  void* allocate(size_t num_bytes, HugePages) override { return allocator_.allocate(num_bytes); }
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
         cudaGetErrorName(status), " (", cudaGetErrorString(status),
         "); this process must be restarted. With enforce_eager and CUDA_LAUNCH_BLOCKING=1 the message names the "
         "kernel");
  }

  void* workspace(size_t num_bytes) override {
    if (num_bytes <= workspace_size_) return workspace_;
    E31_CHECK(!capturing_, kInternal, "the workspace grew inside a graph; run the step once before it is captured");
    // Doubled, so that steps of slowly growing sizes do not leave many behind.
    const size_t size = std::max(num_bytes, 2 * workspace_size_);
    void* grown = allocator_.allocate(size);  // if it cannot be had, what worked before works on
    note_moved_memory();
    allocator_.deallocate(workspace_);
    workspace_ = grown;
    workspace_size_ = size;
    return workspace_;
  }

  bool has_graphs() const override { return true; }
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
  void abandon_capture() noexcept override {
    if (!capturing_) return;
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();  // that the capture was broken is known
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

DeviceInfo properties_of(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties");
  return {.name = properties.name,
          .compute_capability = properties.major * 10 + properties.minor,
          .num_multiprocessors = properties.multiProcessorCount,
          .shared_memory_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
          .total_memory = static_cast<int64_t>(properties.totalGlobalMem)};
}

DeviceInfo CudaDevice::info() const {
  DeviceInfo info = properties_of(index_);
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory");
  info.total_memory = static_cast<int64_t>(total_bytes);
  info.free_memory = static_cast<int64_t>(free_bytes);
  return info;
}

int count_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  E31_CHECK(status == cudaSuccess, kDevice,
            "device \"cuda\" needs an NVIDIA driver for CUDA 13 (580 or newer) and a GPU: ", cudaGetErrorName(status),
            " (", cudaGetErrorString(status), "); use device \"cpu\", or install the driver");
  return count;
}

}  // namespace

std::unique_ptr<Device> open_device(int index) {
  const int count = count_devices();
  E31_CHECK(index >= 0 && index < count, kDevice, "there is no GPU number ", index, "; this machine shows ", count,
            " (see CUDA_VISIBLE_DEVICES)");
  const int32_t capability = properties_of(index).compute_capability;
  E31_CHECK(capability >= kMinComputeCapability, kDevice, "GPU number ", index, " has compute capability ",
            capability / 10, ".", capability % 10, "; 8.0 (A100, RTX 30) or newer is needed");
  return std::make_unique<CudaDevice>(index);
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices;
  const int count = count_devices();
  for (int index = 0; index < count; ++index) devices.push_back(properties_of(index));
  return devices;
}

int32_t runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

int32_t driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  return version;
}

}  // namespace eagle31rt::cuda
