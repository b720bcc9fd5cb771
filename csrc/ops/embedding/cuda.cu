// Rows of the token embedding, widened to float32.
//
// One block a row, 256 threads along its columns; every warp reads 64 (16-bit) or 128 contiguous bytes and writes 128.
// Bytes moved: 6 per element with 16-bit weights. 64 rows of 4096: 1.6 MB, 0.8 us on an A100, 0.5 us on an H100, 0.3 us
// on an H200, 0.2 us on a B200: below the cost of a launch.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "device/cuda/stored.cuh"
#include "ops/embedding/embedding.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kThreads = 256;

template <typename Element>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const EmbeddingParams params) {
  const int64_t row = blockIdx.x;
  const Element* source =
      static_cast<const Element*>(params.table.data) + params.token_ids[row] * params.table.row_stride();
  float* output = params.output + row * params.table.in_features;
  for (int64_t i = threadIdx.x; i < params.table.in_features; i += kThreads)
    output[i] = params.scale * widen(source[i]);
}

}  // namespace

void embedding(const EmbeddingParams& params, ExecutionContext& context) {
  dispatch_stored(params.table.dtype, [&]<typename Element>() {
    launch("embedding", embedding_kernel<Element>,
           {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kThreads)}, context, params);
  });
}

}  // namespace eagle31rt::cuda
