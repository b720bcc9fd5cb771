#include "ops/linear/packed_weight.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/half.h"

namespace eagle31rt {

float read_float(const std::byte* source, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, source, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, source, sizeof(bits));
  return dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

namespace {

// Writes one value and says whether it is finite as stored.
bool store_value(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
    return std::isfinite(value);
  }
  const bool is_bfloat16 = dtype == DType::kBFloat16;
  const uint16_t bits = is_bfloat16 ? float_to_bfloat16(value) : float_to_float16(value);
  static_cast<uint16_t*>(data)[index] = bits;
  const uint16_t exponent = is_bfloat16 ? 0x7f80 : 0x7c00;
  return (bits & exponent) != exponent;
}

}  // namespace

float packed_value(const PackedWeightView& weight, int64_t o, int64_t k) {
  if (weight.form.is_quantised()) return dequantised_value(weight, o, k);
  const int64_t offset = weight_index(weight, o, k) * dtype_size(weight.dtype);
  return read_float(static_cast<const std::byte*>(weight.data) + offset, weight.dtype);
}

size_t PackedWeight::num_bytes_of(DType dtype, int64_t out_features, int64_t in_features, WeightLayout layout,
                                  const WeightForm& form) {
  E31_CHECK(is_floating_point(dtype), kInvalidArgument, "a linear weight of dtype ", dtype_name(dtype),
            " is not possible; use float32, bfloat16 or float16");
  // 2^31 features a side: far above any model, and the byte count below can not overflow.
  constexpr int64_t kMaxFeatures = int64_t{1} << 31;
  E31_CHECK(out_features > 0 && in_features > 0 && out_features < kMaxFeatures && in_features < kMaxFeatures,
            kInvalidArgument, "a linear weight of shape [", out_features, ", ", in_features,
            "] is not possible; both sizes must be positive and below 2^31");
  E31_CHECK(!form.is_quantised() || has_kernels(form, layout), kInvalidArgument,
            "no kernel reads a weight in groups of ", form.group_size, " with this code and scale");
  const PackedWeightView view{nullptr, dtype, out_features, in_features, layout, form};
  if (form.is_quantised()) {
    const int64_t bytes = layout == WeightLayout::kPanels ? view.panel_bytes() : 2 * view.strip_bytes();
    return static_cast<size_t>(view.num_panels()) * static_cast<size_t>(bytes);
  }
  if (layout == WeightLayout::kRowMajor) {
    return static_cast<size_t>(out_features) * static_cast<size_t>(view.row_stride() * dtype_size(dtype));
  }
  return static_cast<size_t>(view.num_panels()) * static_cast<size_t>(kPanelWidth * in_features) *
         static_cast<size_t>(dtype_size(dtype));
}

namespace {

std::shared_ptr<std::byte> allocate_weight(size_t num_bytes) {
  auto buffer = std::make_shared<AlignedBuffer>(num_bytes);
  return {buffer, buffer->as<std::byte>()};
}

}  // namespace

PackedWeight::PackedWeight(DType dtype, int64_t out_features, int64_t in_features, WeightLayout layout,
                           const WeightForm& form)
    : PackedWeight(dtype, out_features, in_features,
                   allocate_weight(num_bytes_of(dtype, out_features, in_features, layout, form)), 0, layout, form) {}

PackedWeight::PackedWeight(DType dtype, int64_t out_features, int64_t in_features, std::shared_ptr<std::byte> memory,
                           size_t offset, WeightLayout layout, const WeightForm& form)
    : memory_(std::move(memory)),
      data_(memory_.get() + offset),
      dtype_(dtype),
      out_features_(out_features),
      in_features_(in_features),
      layout_(layout),
      form_(form) {
  E31_INVARIANT(offset % 64 == 0);
}

int64_t PackedWeight::write_rows(int64_t first_row, const void* source, DType source_dtype, int64_t num_rows) {
  E31_CHECK(is_floating_point(source_dtype), kInvalidArgument, "weights of dtype ", dtype_name(source_dtype),
            " can not be packed; use float32, bfloat16 or float16");
  E31_INVARIANT(!form_.is_quantised());
  E31_INVARIANT(first_row >= 0 && num_rows >= 0 && num_rows <= out_features_ - first_row);
  const int64_t size = dtype_size(source_dtype);
  const PackedWeightView target = view();
  int64_t num_not_finite = 0;
  // Panel by panel and feature by feature: the packed side is written in order, and the source is read as up to 32
  // streams, so each line of both is touched once.
  for (int64_t row = first_row; row < first_row + num_rows;) {
    const int64_t panel_end = (row / kPanelWidth + 1) * kPanelWidth;
    const int64_t end = panel_end < first_row + num_rows ? panel_end : first_row + num_rows;
    const std::byte* block = static_cast<const std::byte*>(source) + (row - first_row) * in_features_ * size;
    for (int64_t k = 0; k < in_features_; ++k) {
      for (int64_t o = row; o < end; ++o) {
        const float value = read_float(block + ((o - row) * in_features_ + k) * size, source_dtype);
        num_not_finite += !store_value(data_, dtype_, weight_index(target, o, k), value);
      }
    }
    row = end;
  }
  return num_not_finite;
}

}  // namespace eagle31rt
