// Where a model's weights, KV cache and activations live, and how bytes get there.
//
// Work on a device runs in the order in which it is given (one stream) and the caller does not wait for it, except
// where a comment says so. On the CPU everything happens at once and every copy between host and device is a memcpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/aligned_buffer.h"

namespace eagle31rt {

enum class DeviceKind { kCpu, kCuda };

struct DeviceInfo {
  std::string name;                // "NVIDIA H100 80GB HBM3", "cpu"
  int32_t compute_capability = 0;  // 80, 90, 100; 0 on the CPU
  int32_t num_multiprocessors = 0;
  int64_t shared_memory_per_block = 0;  // bytes a kernel may opt in to
  int64_t total_memory = 0;             // bytes
  int64_t free_memory = 0;              // bytes, now
};

// Recorded work that is launched again as one; the arguments of its operators are fixed, what they point to is not.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual DeviceInfo info() const = 0;
  // To be called by a thread before anything else, if another may have used the device since. Cheap.
  virtual void make_current() noexcept {}

  // True where the host reads and writes the device's memory directly and operators have run when they return.
  virtual bool is_host() const = 0;

  // Aligned to 256 bytes, contents undefined. Throws Error(kResource). Freed memory may be handed out again at once:
  // the order of the stream keeps earlier work from seeing later contents. huge_pages: a hint for memory that is
  // streamed, on the CPU.
  virtual void* allocate(size_t num_bytes, HugePages huge_pages = HugePages::kNo) = 0;
  virtual void deallocate(void* memory) noexcept = 0;
  // Host memory that copies to and from the device can read and write without staging.
  virtual void* allocate_host(size_t num_bytes) = 0;
  virtual void deallocate_host(void* memory) noexcept = 0;
  // Memory that host and device both address (for tests; slow). The host reads it after synchronize().
  virtual void* allocate_shared(size_t num_bytes) = 0;
  virtual void deallocate_shared(void* memory) noexcept = 0;

  // `source` must stay as it is until synchronize(), if it came from allocate_host(); other memory is read at once.
  virtual void copy_to_device(void* destination, const void* source, size_t num_bytes) = 0;
  // `destination` is filled after synchronize().
  virtual void copy_to_host(void* destination, const void* source, size_t num_bytes) = 0;
  virtual void copy(void* destination, const void* source, size_t num_bytes) = 0;
  virtual void fill(void* destination, uint8_t value, size_t num_bytes) = 0;
  // Waits for all work. Throws Error(kDevice) if any of it failed, naming the operator that was launched last.
  virtual void synchronize() = 0;

  // At least num_bytes of scratch memory, valid for the operator that is being called. Grows outside of captures only.
  virtual void* workspace(size_t num_bytes) = 0;

  // Between these two calls operators and copies are recorded instead of run. Memory that they use must stay in place
  // for as long as the graph is kept: one that was recorded under another memory_epoch() must not be launched.
  virtual bool has_graphs() const { return false; }
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;  // after an error between the two; harmless when nothing is captured
  virtual void launch(DeviceGraph& graph) = 0;

  // The stream, as the backend's operators know it (cudaStream_t); null on the CPU.
  virtual void* stream() const { return nullptr; }

  // Changes when memory that operators were given before has moved: activations (model/scratch.h) or the workspace.
  uint64_t memory_epoch() const { return memory_epoch_; }
  void note_moved_memory() { memory_epoch_ += 1; }

 private:
  uint64_t memory_epoch_ = 0;
};

// The host itself. One for the whole process.
Device& cpu_device();

// Owns memory that a device gave: its own (DeviceBuffer), or host memory that it copies from and to without staging
// (HostBuffer; pinned memory of CUDA).
enum class MemoryPlace { kDevice, kHost };

template <MemoryPlace kPlace>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  // huge_pages: of memory on the device only.
  OwnedMemory(Device& device, size_t num_bytes, HugePages huge_pages = HugePages::kNo)
      : device_(&device), data_(allocate(device, num_bytes, huge_pages)), size_(num_bytes) {}
  ~OwnedMemory() {
    if (data_ == nullptr) return;
    if constexpr (kPlace == MemoryPlace::kDevice) {
      device_->deallocate(data_);
    } else {
      device_->deallocate_host(data_);
    }
  }
  OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  static void* allocate(Device& device, size_t num_bytes, HugePages huge_pages) {
    if (num_bytes == 0) return nullptr;
    if constexpr (kPlace == MemoryPlace::kDevice) return device.allocate(num_bytes, huge_pages);
    return device.allocate_host(num_bytes);
  }
  void swap(OwnedMemory& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

using DeviceBuffer = OwnedMemory<MemoryPlace::kDevice>;
using HostBuffer = OwnedMemory<MemoryPlace::kHost>;

}  // namespace eagle31rt
