// Exports: every other function of CUDA 13.0's runtime, so that a program which links to one starts; a call of it says
// so and returns cudaErrorNotSupported. This file cannot include CUDA's prototypes, which the definitions do not match:
// in the C calling conventions of x86-64 and AArch64 a function without parameters may be called with any.
#include "runtime.h"

namespace {

int unsupported(const char* name) {
  const std::lock_guard lock(cudart::runtime().mutex);
  cudart::runtime().explain(std::string(name) + " is not simulated");
  return cudart::remember(cudaErrorNotSupported);
}

}  // namespace

#define X(name) \
  extern "C" int name() { return unsupported(#name); }
#include "unsupported.def"
#undef X
