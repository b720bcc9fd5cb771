// Packing of quantised weights.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/linear/packed_weight.h"

namespace eagle31rt {
namespace {

void store_scale(ScaleType type, float scale, uint8_t* target) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if (type == ScaleType::kFloat32) {
    std::memcpy(target, &bits, sizeof(bits));
  } else if (type == ScaleType::kBFloat16) {
    const uint16_t half = float_to_bfloat16(scale);
    std::memcpy(target, &half, sizeof(half));
  } else {
    *target = static_cast<uint8_t>(std::isnan(scale) ? 255 : bits >> 23);
  }
}

// Kernels may hold a scale times 2^8.
constexpr float kLargestScale = 0x1p119f;

float largest_code(WeightCode code) {
  return code == WeightCode::kFp8 ? 448.0f : code == WeightCode::kInt4 ? 8.0f : 6.0f;
}

// Elements of a group of one output that are not finite in dtype: none, as a rule, if the largest code's is not.
int64_t count_not_finite(const PackedWeightView& weight, const uint8_t* codes, int64_t size, float scale) {
  const WeightCode code = weight.form.code;
  if (!(std::abs(scale) <= kLargestScale)) return size;
  const bool all_fit = std::isfinite(rounded_to(weight.dtype, largest_code(code) * scale));
  if (all_fit && code != WeightCode::kFp8) return 0;
  if (all_fit) return std::count_if(codes, codes + size, [](uint8_t bits) { return (bits & 0x7f) == 0x7f; });
  return std::count_if(codes, codes + size, [&](uint8_t bits) {
    return !std::isfinite(rounded_to(weight.dtype, code_value(code, bits) * scale));
  });
}

void store_code(uint8_t* byte, int64_t shift, uint32_t mask, uint8_t code) {
  *byte = static_cast<uint8_t>((*byte & ~(mask << shift)) | (code & mask) << shift);
}

struct Features {
  int64_t begin, end;
};

// The codes of output o and the features of one group: from the place of the first, without a division for each.
void store_group(const PackedWeightView& weight, uint8_t* data, int64_t o, const Features& features,
                 const uint8_t* codes) {
  const bool is_byte = weight.form.code == WeightCode::kFp8;
  const uint32_t mask = is_byte ? 0xffu : 0xfu;
  const CodePlace place = code_place(weight, o, features.begin);
  if (weight.layout == WeightLayout::kPanels) {
    const int64_t step = weight.code_row_bytes();
    uint8_t* byte = data + place.code;
    for (int64_t k = features.begin; k < features.end; ++k, byte += step) store_code(byte, place.shift, mask, *codes++);
    return;
  }
  uint8_t* strip = data + o / kStripWidth * weight.strip_bytes();
  for (int64_t k = features.begin; k < features.end; ++k) {
    const int64_t index = code_in_tile(o, k);
    uint8_t* tile = strip + k / kTileDepth * weight.tile_bytes();
    store_code(tile + (is_byte ? index : index / 2), is_byte ? 0 : index % 2 * 4, mask, *codes++);
  }
}

}  // namespace

bool has_kernels(const WeightForm& form, WeightLayout layout) {
  if (form.group_size < 1) return false;
  if (layout == WeightLayout::kRowMajor && form.group_size != 16 && form.group_size != 32 &&
      form.group_size % kTileDepth != 0) {
    return false;
  }
  switch (form.code) {
    case WeightCode::kFp8:
      return form.scale == ScaleType::kFloat32;
    case WeightCode::kInt4:
      return form.scale != ScaleType::kE8M0;
    case WeightCode::kFp4:
      return form.scale == ScaleType::kE8M0;
    case WeightCode::kNone:
      return false;
  }
  return false;
}

int64_t PackedWeight::write_codes(int64_t first_row, const uint8_t* codes, const float* scales, int64_t num_rows) {
  E31_INVARIANT(form_.is_quantised());
  E31_INVARIANT(first_row >= 0 && num_rows >= 0 && num_rows <= out_features_ - first_row);
  const PackedWeightView target = view();
  auto* data = reinterpret_cast<uint8_t*>(data_);
  const int64_t num_groups = form_.num_groups(in_features_);
  int64_t num_not_finite = 0;
  for (int64_t r = 0; r < num_rows; ++r, codes += in_features_, scales += num_groups) {
    for (int64_t group = 0, begin = 0; group < num_groups; ++group, begin += form_.group_size) {
      const int64_t end = std::min<int64_t>(begin + form_.group_size, in_features_);
      store_scale(form_.scale, scales[group], data + code_place(target, first_row + r, begin).scale);
      num_not_finite += count_not_finite(target, codes + begin, end - begin, scales[group]);
      store_group(target, data, first_row + r, {begin, end}, codes + begin);
    }
  }
  return num_not_finite;
}

}  // namespace eagle31rt
