// What the processor and the operating system allow.
#pragma once

namespace eagle31rt {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL and all of avx2
};

CpuFeatures detect_cpu_features();

}  // namespace eagle31rt
