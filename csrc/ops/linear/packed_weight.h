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
//
// Quantised weights (weight_form.h) in these layouts; both are filled up to 32 outputs:
//   kPanels: a panel is a sequence of groups, and a group its kPanelWidth scales and then, for every k, kPanelWidth
//   codes: one stream. Four-bit outputs j and j + 16 share byte j, the first in its lower half. A panel is filled up to
//   64 bytes.
//   kRowMajor: a strip of 16 outputs has, for every 64 features, a tile of codes in the order of the fragments of
//   mma.m16n8k16; then its scales, [group][output]. A tile is [k / 16][lane][8 codes]: lane 4 * (o % 8) + k % 8 / 2 of
//   a warp finds its codes for 16 features and 16 outputs side by side, code 4 * (o / 8 % 2) + 2 * (k / 8 % 2) + k % 2.
//   A strip is filled up to 32 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/host_device.h"
#include "device/aligned_buffer.h"
#include "eagle31rt/dtype.h"
#include "ops/linear/weight_form.h"

namespace eagle31rt {

constexpr int64_t kPanelWidth = 32;
constexpr int64_t kRowAlignment = 64;  // elements
constexpr int64_t kStripWidth = 16;    // outputs of a quantised strip
constexpr int64_t kTileDepth = 64;     // features of a tile of codes

enum class WeightLayout : uint8_t { kPanels, kRowMajor };

struct PackedWeightView {
  const void* data;  // [num_panels, in_features, kPanelWidth] or [out_features, row_stride] in dtype, 64-byte aligned;
                     // quantised: [num_panels, panel_bytes] or [strips, strip_bytes]
  DType dtype;       // float32, bfloat16 or float16; quantised: what an element is rounded to
  int64_t out_features;  // N, unpadded
  int64_t in_features;   // K
  WeightLayout layout = WeightLayout::kPanels;
  WeightForm form = {};

  E31_HOST_DEVICE int64_t row_stride() const {  // kRowMajor, elements
    return (in_features + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  }
  int64_t num_panels() const { return (out_features + kPanelWidth - 1) / kPanelWidth; }

  // Of quantised weights, in bytes.
  E31_HOST_DEVICE int64_t code_row_bytes() const { return kPanelWidth * form.code_bits() / 8; }  // kPanels, one k
  E31_HOST_DEVICE int64_t group_bytes() const {  // kPanels, a whole group
    return kPanelWidth * form.scale_bytes() + form.group_size * code_row_bytes();
  }
  E31_HOST_DEVICE int64_t panel_bytes() const {
    const int64_t scales = form.num_groups(in_features) * kPanelWidth * form.scale_bytes();
    return (scales + in_features * code_row_bytes() + 63) / 64 * 64;
  }
  E31_HOST_DEVICE int64_t tile_bytes() const { return kStripWidth * kTileDepth * form.code_bits() / 8; }
  E31_HOST_DEVICE int64_t num_tiles() const { return row_stride() / kTileDepth; }  // of a strip
  // Groups smaller than a tile fill whole tiles.
  E31_HOST_DEVICE int64_t strip_groups() const {
    const int64_t features = form.group_size < kTileDepth ? row_stride() : in_features;
    return (features + form.group_size - 1) / form.group_size;
  }
  E31_HOST_DEVICE int64_t strip_bytes() const {
    return (num_tiles() * tile_bytes() + strip_groups() * kStripWidth * form.scale_bytes() + 31) / 32 * 32;
  }
};

// Position of output o inside its panel row.
constexpr int64_t packed_lane(DType dtype, int64_t o) {
  const int64_t j = o % kPanelWidth;
  return dtype == DType::kBFloat16 ? 2 * (j % 16) + j / 16 : j;
}

constexpr int64_t packed_index(DType dtype, int64_t in_features, int64_t o, int64_t k) {
  return (o / kPanelWidth) * in_features * kPanelWidth + k * kPanelWidth + packed_lane(dtype, o);
}

// Where element (o, k) of a weight that is not quantised lies.
constexpr int64_t weight_index(const PackedWeightView& weight, int64_t o, int64_t k) {
  return weight.layout == WeightLayout::kRowMajor
             ? o * ((weight.in_features + kRowAlignment - 1) / kRowAlignment * kRowAlignment) + k
             : packed_index(weight.dtype, weight.in_features, o, k);
}

struct CodePlace {
  int64_t code;   // byte of the code,
  int64_t shift;  // its lowest bit therein
  int64_t scale;  // first byte of its scale
};

// Of the codes of a tile, the one of element (o, k).
E31_HOST_DEVICE static inline int64_t code_in_tile(int64_t o, int64_t k) {
  const int64_t lane = o % 8 * 4 + k % 8 / 2;
  return k % kTileDepth / 16 * 256 + lane * 8 + o / 8 % 2 * 4 + k / 8 % 2 * 2 + k % 2;
}

// Where code and scale of element (o, k) of a quantised weight lie.
E31_HOST_DEVICE static inline CodePlace code_place(const PackedWeightView& weight, int64_t o, int64_t k) {
  const WeightForm& form = weight.form;
  const int64_t group = k / form.group_size;
  const bool is_byte = form.code == WeightCode::kFp8;
  if (weight.layout == WeightLayout::kRowMajor) {
    const int64_t strip = o / kStripWidth * weight.strip_bytes();
    const int64_t code = code_in_tile(o, k);
    const int64_t tile = strip + k / kTileDepth * weight.tile_bytes();
    const int64_t scales = strip + weight.num_tiles() * weight.tile_bytes();
    return {tile + (is_byte ? code : code / 2), is_byte ? 0 : code % 2 * 4,
            scales + (group * kStripWidth + o % kStripWidth) * form.scale_bytes()};
  }
  const int64_t lane = o % kPanelWidth;
  const int64_t start = o / kPanelWidth * weight.panel_bytes() + group * weight.group_bytes();
  const int64_t row = start + kPanelWidth * form.scale_bytes() + k % form.group_size * weight.code_row_bytes();
  return {row + (is_byte ? lane : lane % 16), is_byte ? 0 : lane / 16 * 4, start + lane * form.scale_bytes()};
}

// Element (o, k) of a quantised weight, by the law of weight_form.h.
E31_HOST_DEVICE static inline float dequantised_value(const PackedWeightView& weight, int64_t o, int64_t k) {
  const CodePlace place = code_place(weight, o, k);
  const auto* data = static_cast<const uint8_t*>(weight.data);
  const uint32_t bits = (data[place.code] >> place.shift) & (weight.form.code == WeightCode::kFp8 ? 0xffu : 0xfu);
  return rounded_to(weight.dtype,
                    code_value(weight.form.code, bits) * read_scale(weight.form.scale, data + place.scale));
}

// Whether the kernels of a layout read this form: groups of any size in panels; in tiles of 64 features those that
// neither straddle a tile nor cut a matrix instruction: 16, 32 and multiples of 64.
bool has_kernels(const WeightForm& form, WeightLayout layout);

// One stored float32, bfloat16 or float16, widened (exact); any alignment.
float read_float(const std::byte* source, DType dtype);

// One element, widened (exact). For specifications and tests; a kernel reads whole panel rows.
float packed_value(const PackedWeightView& weight, int64_t o, int64_t k);

// Owns one packed weight. Rows are written block by block, so that q, k and v (or gate and up) become one weight.
class PackedWeight {
 public:
  PackedWeight() = default;
  PackedWeight(DType dtype, int64_t out_features, int64_t in_features, WeightLayout layout = WeightLayout::kPanels,
               const WeightForm& form = {});
  // In memory shared by the weights of a model, at an offset that is a multiple of 64. A step then reads one sequential
  // stream through huge pages; most weights of a small model are smaller than one such page.
  // The memory must come zeroed; it may be a device's as long as the host can write it (DeviceBuffer weights are
  // filled through a staging copy, model/weight_loader.h).
  PackedWeight(DType dtype, int64_t out_features, int64_t in_features, std::shared_ptr<std::byte> memory, size_t offset,
               WeightLayout layout = WeightLayout::kPanels, const WeightForm& form = {});

  // Size in memory, a multiple of 64. Throws Error(kInvalidArgument) for sizes, a dtype or a form that no kernel reads.
  static size_t num_bytes_of(DType dtype, int64_t out_features, int64_t in_features,
                             WeightLayout layout = WeightLayout::kPanels, const WeightForm& form = {});

  // Writes source rows [num_rows, in_features] (row-major, float32 | bfloat16 | float16, any alignment) as outputs
  // first_row .. first_row + num_rows - 1, converting to the packed dtype (round to nearest even). Returns the number
  // of values that are not finite after the conversion, for the caller to refuse by name. Throws Error on a dtype that
  // is not a float, on rows outside the weight and on a quantised weight.
  int64_t write_rows(int64_t first_row, const void* source, DType source_dtype, int64_t num_rows);

  // The same for a quantised weight: codes [num_rows, in_features], one a byte, and scales [num_rows, num_groups],
  // which the scale type of the form must hold exactly. Returns the number of elements that are not finite in dtype.
  // Kernels take codes and scales to be finite: they give any value for a NaN.
  int64_t write_codes(int64_t first_row, const uint8_t* codes, const float* scales, int64_t num_rows);

  PackedWeightView view() const { return {data_, dtype_, out_features_, in_features_, layout_, form_}; }
  int64_t num_bytes() const {
    return empty() ? 0 : static_cast<int64_t>(num_bytes_of(dtype_, out_features_, in_features_, layout_, form_));
  }
  bool empty() const { return data_ == nullptr; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  WeightLayout layout_ = WeightLayout::kPanels;
  WeightForm form_;
};

}  // namespace eagle31rt
