// An array in device memory that is filled once from the host: norm weights, biases, id maps, tables.
#pragma once

#include <cstddef>
#include <span>

#include "device/device.h"

namespace eagle31rt {

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, std::span<const T> values) : buffer_(device, values.size_bytes()), size_(values.size()) {
    device.copy_to_device(buffer_.data(), values.data(), values.size_bytes());
  }

  const T* data() const { return static_cast<const T*>(buffer_.data()); }  // null if empty
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  DeviceBuffer buffer_;
  size_t size_ = 0;
};

}  // namespace eagle31rt
