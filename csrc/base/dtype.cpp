#include "eagle31rt/dtype.h"

#include "base/check.h"

namespace eagle31rt {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

DType parse_floating_point_dtype(const std::string& name) {
  if (name == "float32" || name == "float") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16" || name == "half") return DType::kFloat16;
  fail(ErrorCode::kInvalidArgument, "dtype \"", name, "\" is not one of float32, bfloat16, float16");
}

}  // namespace eagle31rt
