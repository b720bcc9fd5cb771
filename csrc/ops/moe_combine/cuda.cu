// The weighted sum of each row's expert outputs, in a fixed order.
//
// Grid (rows, hidden_size / 256), a thread an element: warps read whole lines of every expert's output. Bytes: 4 for
// each expert and 8 for base and output. 64 rows of 8 experts, hidden size 2048: 5.2 MB, 2.6 us on an A100, 1.6 us on
// an H100, 1.1 us on an H200, 0.7 us on a B200, and the experts' outputs are still in L2.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/moe_combine/moe_combine.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) moe_combine_kernel(const MoeCombineParams p) {
  const int64_t row = blockIdx.x;
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= p.hidden_size) return;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t j = row * p.top_k; j < (row + 1) * p.top_k; ++j) {
    sum = fmaf(p.weights[j], p.expert_output[p.places[j] * p.hidden_size + i], sum);
  }
  const int64_t offset = row * p.hidden_size + i;
  p.output[offset] = p.base == nullptr ? sum : p.base[offset] + sum;
}

}  // namespace

void moe_combine(const MoeCombineParams& params, ExecutionContext& context) {
  const int64_t column_tiles = (params.hidden_size + kThreads - 1) / kThreads;
  launch("moe_combine", moe_combine_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows), static_cast<unsigned>(column_tiles)),
          .block = dim3(kThreads)},
         context, params);
}

}  // namespace eagle31rt::cuda
