// Owns host memory that a device copies from and to without staging (pinned memory of CUDA).
#pragma once

#include <cstddef>
#include <utility>

#include "device/device.h"

namespace eagle31rt {

class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device& device, size_t num_bytes)
      : device_(&device), data_(num_bytes == 0 ? nullptr : device.allocate_host(num_bytes)), size_(num_bytes) {}
  ~HostBuffer() {
    if (data_ != nullptr) device_->deallocate_host(data_);
  }
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void swap(HostBuffer& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace eagle31rt
