// What the runtime tells about the simulated device.
#pragma once

#include <driver_types.h>

#include "device.h"

namespace cudart {

// 0 for what is not simulated: textures, cooperative launches, peers, IPC.
int attribute(const DeviceProfile& device, cudaDeviceAttr name);
cudaDeviceProp properties(const DeviceProfile& device);

}  // namespace cudart
