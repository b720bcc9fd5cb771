// Forms of quantised weights by names, and their codes and scales as arrays.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "base/check.h"
#include "ops/linear/packed_weight.h"

namespace eagle31rt {

// code: "" (not quantised) | "fp8" | "int4" | "fp4". scale: "float32" | "bfloat16" | "e8m0".
inline WeightForm parse_form(const std::string& code, const std::string& scale, int32_t group_size) {
  if (code.empty()) return {};
  const WeightCode codes = code == "fp8" ? WeightCode::kFp8 : code == "int4" ? WeightCode::kInt4 : WeightCode::kFp4;
  const ScaleType scales = scale == "float32"    ? ScaleType::kFloat32
                           : scale == "bfloat16" ? ScaleType::kBFloat16
                                                 : ScaleType::kE8M0;
  return {codes, scales, group_size};
}

using CodeArray = pybind11::array_t<uint8_t, pybind11::array::c_style>;
using ScaleArray = pybind11::array_t<float, pybind11::array::c_style | pybind11::array::forcecast>;

inline int64_t write_codes(PackedWeight& weight, int64_t first_row, const CodeArray& codes, const ScaleArray& scales) {
  const PackedWeightView view = weight.view();
  E31_CHECK(codes.ndim() == 2 && codes.shape(1) == view.in_features && scales.ndim() == 2 &&
                scales.shape(0) == codes.shape(0) && scales.shape(1) == view.form.num_groups(view.in_features),
            kInvalidArgument, "codes must be [n, in_features] and scales [n, num_groups]");
  return weight.write_codes(first_row, codes.data(), scales.data(), codes.shape(0));
}

}  // namespace eagle31rt
