// Element types of weights, KV caches and checkpoint tensors.
#pragma once

#include <cstdint>
#include <string>

namespace eagle31rt {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kUInt8, kBool };

// Size of one element in bytes.
constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr bool is_floating_point(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// "float32", "bfloat16", ... (the spelling of torch and of config.json).
const char* dtype_name(DType dtype);

// Throws Error(kInvalidArgument) for a name that is not float32, bfloat16 or float16.
DType parse_floating_point_dtype(const std::string& name);

}  // namespace eagle31rt
