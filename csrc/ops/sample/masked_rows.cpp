#include "ops/sample/masked_rows.h"

#include "device/aligned_buffer.h"

namespace eagle31rt {

float* masked_row_scratch(const SampleParams& params, int num_threads) {
  if (params.masked_begin == nullptr || params.masked_begin[params.num_rows] == params.masked_begin[0]) return nullptr;
  thread_local AlignedBuffer buffer;
  const size_t num_bytes = static_cast<size_t>(num_threads) * static_cast<size_t>(params.vocab_size) * sizeof(float);
  if (buffer.size() < num_bytes) {
    buffer = AlignedBuffer();  // give the old one back first
    buffer = AlignedBuffer(num_bytes);
  }
  return buffer.as<float>();
}

}  // namespace eagle31rt
