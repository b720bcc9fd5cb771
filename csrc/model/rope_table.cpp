#include "model/rope_table.h"

#include <numeric>
#include <vector>

#include "ops/ops.h"

namespace eagle31rt {

RopeTable::RopeTable(const RopeConfig& config, Device& device, int64_t num_positions)
    : angles_(config), on_host_(device.is_host()), cosine_(device), sine_(device) {
  if (on_host_) return;
  std::vector<int32_t> positions(static_cast<size_t>(num_positions));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> cosine(positions.size() * static_cast<size_t>(angles_.half_dim())), sine(cosine.size());
  angles_.compute(positions.data(), num_positions, cosine.data(), sine.data());
  all_cosines_ = DeviceArray<float>(device, cosine);
  all_sines_ = DeviceArray<float>(device, sine);
}

void RopeTable::reserve(int64_t num_rows) {
  cosine_.get(num_rows * angles_.half_dim());
  sine_.get(num_rows * angles_.half_dim());
}

RopeRows RopeTable::rows(const int32_t* positions, int64_t num_rows, ExecutionContext& context) {
  reserve(num_rows);
  if (on_host_) {
    angles_.compute(positions, num_rows, cosine_.data(), sine_.data());
    return {cosine_.data(), sine_.data()};
  }
  const int64_t half = angles_.half_dim();
  const auto gather = [&](const DeviceArray<float>& table, float* output) {
    context.ops.gather_rows({.input = table.data(),
                             .indices = positions,
                             .output = output,
                             .num_rows = num_rows,
                             .num_columns = half,
                             .input_stride = half,
                             .output_stride = half},
                            context);
  };
  gather(all_cosines_, cosine_.data());
  gather(all_sines_, sine_.data());
  return {cosine_.data(), sine_.data()};
}

}  // namespace eagle31rt
