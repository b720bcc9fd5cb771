#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "device/aligned_buffer.h"
#include "device/device.h"

namespace eagle31rt {

namespace {

constexpr size_t kAlignment = 256;

void* allocate_aligned(size_t num_bytes) {
  void* memory = std::aligned_alloc(kAlignment, (num_bytes + kAlignment - 1) / kAlignment * kAlignment);
  E31_CHECK(memory != nullptr || num_bytes == 0, kResource, "could not allocate ", num_bytes, " bytes");
  return memory;
}

// Operators run when they are called, so there is nothing to record.
class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  DeviceInfo info() const override {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return {
        .name = "cpu", .total_memory = sysconf(_SC_PHYS_PAGES) * page, .free_memory = sysconf(_SC_AVPHYS_PAGES) * page};
  }

  bool is_host() const override { return true; }

  // Mapped: what is never touched costs address space only, and freed memory goes back to the system.
  void* allocate(size_t num_bytes, HugePages huge_pages) override {
    AlignedBuffer buffer(num_bytes, huge_pages);
    void* memory = buffer.data();
    const std::lock_guard lock(mutex_);
    buffers_.emplace(memory, std::move(buffer));
    return memory;
  }
  void deallocate(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    buffers_.erase(memory);
  }
  void* allocate_host(size_t num_bytes) override { return allocate_aligned(num_bytes); }
  void deallocate_host(void* memory) noexcept override { std::free(memory); }
  void* allocate_shared(size_t num_bytes) override { return allocate_aligned(num_bytes); }
  void deallocate_shared(void* memory) noexcept override { std::free(memory); }

  void copy_to_device(void* destination, const void* source, size_t num_bytes) override {
    copy(destination, source, num_bytes);
  }
  void copy_to_host(void* destination, const void* source, size_t num_bytes) override {
    copy(destination, source, num_bytes);
  }
  void copy(void* destination, const void* source, size_t num_bytes) override {
    if (num_bytes > 0) std::memcpy(destination, source, num_bytes);
  }
  void fill(void* destination, uint8_t value, size_t num_bytes) override {
    if (num_bytes > 0) std::memset(destination, value, num_bytes);
  }
  void synchronize() override {}

  void* workspace(size_t num_bytes) override {
    if (num_bytes > workspace_.size()) workspace_ = AlignedBuffer(num_bytes);
    return workspace_.data();
  }

  void begin_capture() override { refuse(); }
  std::unique_ptr<DeviceGraph> end_capture() override { refuse(); }
  void abandon_capture() noexcept override {}
  void launch(DeviceGraph&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail(ErrorCode::kUnsupported, "the CPU has no graphs"); }
  AlignedBuffer workspace_;
  std::mutex mutex_;
  std::unordered_map<void*, AlignedBuffer> buffers_;
};

}  // namespace

Device& cpu_device() {
  // Never destroyed: buffers in static objects of others may go after it would.
  static CpuDevice& device = *new CpuDevice;
  return device;
}

}  // namespace eagle31rt
