// The rows of a decode step from the requests' state.
//
// One block of a warp for each request, a lane for each of its rows (up to 17); kCommit walks the slots of the state
// with all threads. A request reads its page table where its rows write and about 20 numbers, and writes about 60 bytes
// a row: 64 requests of 6 rows are 25 KB, nothing beside the 2-3 us that a launch costs on an A100, H100, H200 or B200.
// What counts is that no step waits for the host to make these rows; so there is one kernel a mode and no tuning.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/step_rows/row_makers.h"

namespace eagle31rt::cuda {

namespace {

__global__ void __launch_bounds__(kWarpSize) draft_rows_kernel(const StepRowsParams params) {
  if (threadIdx.x == 0) make_draft_row(params, blockIdx.x);
}

__global__ void __launch_bounds__(kWarpSize) verify_rows_kernel(const StepRowsParams params) {
  for (int32_t place = threadIdx.x; place < params.rows_per_request; place += kWarpSize) {
    make_verify_row(params, blockIdx.x, place);
  }
}

__global__ void __launch_bounds__(kWarpSize) commit_rows_kernel(const StepRowsParams params) {
  const int64_t request = blockIdx.x;
  const int32_t slot = params.request_slots[request];
  const int32_t length = slot < 0 ? 0 : params.state.length[slot];
  for (int32_t place = threadIdx.x; place < params.rows_per_request; place += kWarpSize) {
    store_result(params, request, place);
    if (params.rows.token_ids != nullptr) make_observed_row(params, request, place, length);
  }
  __syncwarp();  // every lane has read the length
  if (threadIdx.x == 0) advance_state(params, request, length);
  if (params.request_of_slot == nullptr) return;
  const int64_t stride = int64_t{gridDim.x} * kWarpSize;
  for (int64_t s = request * kWarpSize + threadIdx.x; s < params.state.num_slots; s += stride)
    store_last_row(params, s);
}

}  // namespace

void step_rows(const StepRowsParams& params, ExecutionContext& context) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_requests)), .block = dim3(kWarpSize)};
  switch (params.mode) {
    case StepRowsMode::kDraft:
      return launch("step_rows_draft", draft_rows_kernel, shape, context, params);
    case StepRowsMode::kVerify:
      return launch("step_rows_verify", verify_rows_kernel, shape, context, params);
    case StepRowsMode::kCommit:
      return launch("step_rows_commit", commit_rows_kernel, shape, context, params);
  }
}

}  // namespace eagle31rt::cuda
