// The CUDA side of device/device.h: one stream, a caching allocator, graphs.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"

namespace eagle31rt::cuda {

// Throws Error(kDevice): no driver, no such GPU, compute capability below 8.0.
std::unique_ptr<Device> open_device(int index);

// Every GPU, without its free memory: asking for that would start a context there. Throws Error(kDevice): no driver.
std::vector<DeviceInfo> list_devices();

// 13000 = CUDA 13.0; the driver's is the newest that it knows, 0 without one.
int32_t runtime_version();
int32_t driver_version();

}  // namespace eagle31rt::cuda
