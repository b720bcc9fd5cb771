// Linear weights in the layout that a backend's kernels stream.
//
// kRowMajor (CUDA): [out_features, row_stride], row_stride = in_features rounded up to kRowAlignment, the tail zero:
// rows start at 16-byte boundaries for cp.async, and a kernel needs no tail of K on this side.
//
// kPanels (CPU): a checkpoint stores [out_features, in_features] row-major. Packed, outputs are grouped into panels of
// kPanelWidth and a panel holds, for every input feature k in ascending order, the kPanelWidth weights of that k:
//
//   element(o, k) at panel(o) * in_features * kPanelWidth + k * kPanelWidth + lane(o)
//
// so a vector lane is one output, its sum runs over k in order, and one row or five hundred take the same additions.
// bfloat16 panels interleave output j with output j + 16 (lane = 2 * (j % 16) + j / 16): a 32-bit lane then widens with
// one shift (even) or one mask (odd). Outputs past out_features are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/host_device.h"
#include "device/aligned_buffer.h"
#include "eagle31rt/dtype.h"

namespace eagle31rt {

constexpr int64_t kPanelWidth = 32;
constexpr int64_t kRowAlignment = 64;  // elements

enum class WeightLayout : uint8_t { kPanels, kRowMajor };

struct PackedWeightView {
  const void* data;  // [num_panels, in_features, kPanelWidth] or [out_features, row_stride] in dtype, 64-byte aligned
  DType dtype;       // float32, bfloat16 or float16
  int64_t out_features;  // N, unpadded
  int64_t in_features;   // K
  WeightLayout layout = WeightLayout::kPanels;

  E31_HOST_DEVICE int64_t row_stride() const {  // kRowMajor, elements
    return (in_features + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  }
  int64_t num_panels() const { return (out_features + kPanelWidth - 1) / kPanelWidth; }
};

// Position of output o inside its panel row.
constexpr int64_t packed_lane(DType dtype, int64_t o) {
  const int64_t j = o % kPanelWidth;
  return dtype == DType::kBFloat16 ? 2 * (j % 16) + j / 16 : j;
}

constexpr int64_t packed_index(DType dtype, int64_t in_features, int64_t o, int64_t k) {
  return (o / kPanelWidth) * in_features * kPanelWidth + k * kPanelWidth + packed_lane(dtype, o);
}

// Where element (o, k) of a weight lies.
constexpr int64_t weight_index(const PackedWeightView& weight, int64_t o, int64_t k) {
  return weight.layout == WeightLayout::kRowMajor
             ? o * ((weight.in_features + kRowAlignment - 1) / kRowAlignment * kRowAlignment) + k
             : packed_index(weight.dtype, weight.in_features, o, k);
}

// One stored float32, bfloat16 or float16, widened (exact); any alignment.
float read_float(const std::byte* source, DType dtype);

// One element, widened (exact). For specifications and tests; a kernel reads whole panel rows.
float packed_value(const PackedWeightView& weight, int64_t o, int64_t k);

// Owns one packed weight. Rows are written block by block, so that q, k and v (or gate and up) become one weight.
class PackedWeight {
 public:
  PackedWeight() = default;
  PackedWeight(DType dtype, int64_t out_features, int64_t in_features, WeightLayout layout = WeightLayout::kPanels);
  // In memory shared by the weights of a model, at an offset that is a multiple of 64. A step then reads one sequential
  // stream through huge pages; most weights of a small model are smaller than one such page.
  // The memory must come zeroed; it may be a device's as long as the host can write it (DeviceBuffer weights are
  // filled through a staging copy, model/weight_loader.h).
  PackedWeight(DType dtype, int64_t out_features, int64_t in_features, std::shared_ptr<std::byte> memory, size_t offset,
               WeightLayout layout = WeightLayout::kPanels);

  // Size in memory, a multiple of 64.
  static size_t num_bytes_of(DType dtype, int64_t out_features, int64_t in_features,
                             WeightLayout layout = WeightLayout::kPanels);

  // Writes source rows [num_rows, in_features] (row-major, float32 | bfloat16 | float16, any alignment) as outputs
  // first_row .. first_row + num_rows - 1, converting to the packed dtype (round to nearest even). Returns the number
  // of values that are not finite after the conversion, for the caller to refuse by name. Throws Error on a dtype that
  // is not a float and on rows outside the weight.
  int64_t write_rows(int64_t first_row, const void* source, DType source_dtype, int64_t num_rows);

  PackedWeightView view() const { return {data_, dtype_, out_features_, in_features_, layout_}; }
  int64_t num_bytes() const {
    return empty() ? 0 : static_cast<int64_t>(num_bytes_of(dtype_, out_features_, in_features_, layout_));
  }
  bool empty() const { return data_ == nullptr; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  WeightLayout layout_ = WeightLayout::kPanels;
};

}  // namespace eagle31rt
