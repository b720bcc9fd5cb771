#include "ops/linear/scratch.h"

#include "device/aligned_buffer.h"

namespace eagle31rt {

float* linear_scratch(int64_t num_floats) {
  thread_local AlignedBuffer buffer;
  const auto num_bytes = static_cast<size_t>(num_floats) * sizeof(float);
  if (buffer.size() < num_bytes) buffer = AlignedBuffer(num_bytes);
  return buffer.as<float>();
}

}  // namespace eagle31rt
