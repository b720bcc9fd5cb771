// A float array in device memory that only grows, for activations: no allocation in a steady state.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace eagle31rt {

class Scratch {
 public:
  explicit Scratch(Device& device = cpu_device()) : device_(&device) {}

  // At least num_elements floats; contents are undefined after growth.
  float* get(int64_t num_elements) {
    const size_t num_bytes = static_cast<size_t>(num_elements) * sizeof(float);
    if (num_bytes > buffer_.size()) {
      device_->note_moved_memory();
      buffer_ = {};
      buffer_ = DeviceBuffer(*device_, num_bytes);
      // Padding of a batch leaves rows that nothing writes and that are read along with the others: not by anyone who
      // matters, but a checker of uninitialised memory cannot know.
      if (!device_->is_host()) device_->fill(buffer_.data(), 0, num_bytes);
    }
    return buffer_.as<float>();
  }
  float* data() const { return buffer_.as<float>(); }

 private:
  Device* device_;
  DeviceBuffer buffer_;
};

}  // namespace eagle31rt
