// What libeagle31rt_cuda.so gives the core: its operators and its device. The operators are the cuda.cu files.
#include "device/cuda/cuda_device.h"
#include "eagle31rt/status.h"
#include "eagle31rt/version.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"

namespace eagle31rt::cuda {

#define E31_DECLARE(op, Params) void op(const Params&, ExecutionContext&);
E31_FOR_EACH_OP(E31_DECLARE)
#undef E31_DECLARE

namespace {

#define E31_ENTRY(op, Params) .op = op,
const Ops kOps = {.name = "cuda", E31_FOR_EACH_OP(E31_ENTRY)};
#undef E31_ENTRY

CudaDescription describe() {
  CudaDescription description;
  description.runtime_version = runtime_version();
  description.driver_version = driver_version();
  try {
    description.devices = list_devices();
  } catch (const Error& error) {
    description.problem = error.what();
  }
  return description;
}

const CudaBackend kBackend = {EAGLE31RT_VERSION, backend_fingerprint(), &kOps, open_device, describe};

}  // namespace
}  // namespace eagle31rt::cuda

extern "C" __attribute__((visibility("default"))) const eagle31rt::CudaBackend* eagle31rt_cuda_backend() {
  return &eagle31rt::cuda::kBackend;
}
