// Rounds floats into a cache's elements, four (one float4, one store) or one at a time.
#pragma once

#include <cstdint>

#include "device/cuda/stored.cuh"

namespace eagle31rt::cuda {

template <typename Element>
struct alignas(4 * sizeof(Element)) FourElements {
  Element element[4];
};

template <int kWidth, typename Element>
E31_DEVICE void store_rounded(const float* source, Element* destination) {
  if constexpr (kWidth == 4) {
    const float4 value = *reinterpret_cast<const float4*>(source);
    *reinterpret_cast<FourElements<Element>*>(destination) = {
        {narrow<Element>(value.x), narrow<Element>(value.y), narrow<Element>(value.z), narrow<Element>(value.w)}};
  } else {
    *destination = narrow<Element>(*source);
  }
}

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace eagle31rt::cuda
