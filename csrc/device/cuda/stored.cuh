// Element types of weights and KV caches as device code knows them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "device/cuda/ptx.cuh"
#include "eagle31rt/dtype.h"

namespace eagle31rt::cuda {

E31_DEVICE float widen(float value) { return value; }
E31_DEVICE float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
E31_DEVICE float widen(__half value) { return __half2float(value); }

// Rounds to nearest even.
template <typename Element>
E31_DEVICE Element narrow(float value);
template <>
E31_DEVICE float narrow<float>(float value) {
  return value;
}
template <>
E31_DEVICE __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
E31_DEVICE __half narrow<__half>(float value) {
  return __float2half_rn(value);
}

// Calls body.operator()<Element>() for the type of `dtype`.
template <typename Body>
void dispatch_stored(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body.template operator()<float>();
    case DType::kBFloat16:
      return body.template operator()<__nv_bfloat16>();
    case DType::kFloat16:
      return body.template operator()<__half>();
    default:
      fail(ErrorCode::kInternal, "no CUDA operator stores ", dtype_name(dtype));
  }
}

}  // namespace eagle31rt::cuda
