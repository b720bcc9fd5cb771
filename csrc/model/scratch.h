// A float array that only grows, for activations: no allocation in a steady state.
#pragma once

#include <cstdint>

#include "device/aligned_buffer.h"

namespace eagle31rt {

class Scratch {
 public:
  // At least num_elements floats; contents are undefined after growth.
  float* get(int64_t num_elements) {
    const size_t num_bytes = static_cast<size_t>(num_elements) * sizeof(float);
    if (num_bytes > buffer_.size()) buffer_ = AlignedBuffer(num_bytes);
    return buffer_.as<float>();
  }
  float* data() const { return buffer_.as<float>(); }

 private:
  AlignedBuffer buffer_;
};

}  // namespace eagle31rt
