// The CUDA side of device/device.h: one stream, a caching allocator, graphs.
#pragma once

#include <memory>

#include "device/device.h"

namespace eagle31rt::cuda {

// Throws Error(kDevice): no driver, no such GPU, compute capability below 8.0.
std::unique_ptr<Device> open_device(int index);

}  // namespace eagle31rt::cuda
