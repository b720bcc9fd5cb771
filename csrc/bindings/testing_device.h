// Where a test runs its operators: the host, or a CUDA device through memory that both address.
#pragma once

#include <memory_resource>
#include <string>

#include "device/device.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

// Null for "cpu" and "reference"; the CUDA device number 0 for "cuda", opened once. Throws Error for other names and
// where there is none.
Device* testing_device(const std::string& mode);

// Until it is destroyed, new std::pmr containers and case weights lie where `device` can read them, in its layouts.
// Containers must not outlive the device, but may outlive the scope.
class DeviceMemoryScope {
 public:
  explicit DeviceMemoryScope(Device* device);
  ~DeviceMemoryScope();
  DeviceMemoryScope(const DeviceMemoryScope&) = delete;
  DeviceMemoryScope& operator=(const DeviceMemoryScope&) = delete;

 private:
  std::pmr::memory_resource* previous_resource_;
  CaseLayouts previous_layouts_;
};

}  // namespace eagle31rt
