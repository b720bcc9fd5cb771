// output = input @ weight^T (+ bias) (+ residual): float32 activations, weights in 16 bits (matrix instructions), as
// codes of 4 or 8 bits (mma_codes.cuh) or in float32 (plain_kernel.cuh).
//
// Real shape: gate and up of Llama-3.1-8B, N = 28672, K = 4096, bfloat16: 235 MB of weights. With M rows 4 M (N + K)
// bytes of activations and 2 M N K flops. Roofline in microseconds, the larger of bytes and flops:
//   M       flops    A100  H100  H200  B200
//   1       0.2 G     118    70    49    29   bytes
//   5       1.2 G     118    70    49    29   bytes
//   40      9.4 G     120    72    50    30   bytes
//   2048    481 G    1542   486   486   214   flops
//
// Up to 16 rows the time is that of the weights. A tile has 16 rows, for one row and for 16, and rows that are not
// there cost neither copies nor shared-memory reads. 64 columns by 64 k: eight threads copy the 128 bytes of a weight
// row, a whole line. Every block reads the activations for itself (from L2 but once): 4 M bytes a k beside 128 bytes of
// weights, 3 % at M = 1, 16 % at M = 5. With 32 columns that share doubles, and the matrix instructions of a block
// would be too few; with 128 columns it halves, but 4096 outputs make only 32 blocks, so K would be cut into nine. As
// it is: N x K = 28672 x 4096: 448 blocks; 128256 x 4096: 2004; 6144 x 4096: 96 x 3 segments; 4096 x 4096: 64 x 5; 4096
// x 14336: 64 x 5. Partial sums are 8 bytes for each row, output and segment: 5 x 8 x M against 2 K = 8192 at 4096 x
// 4096, 0.5 % at M = 1, 2.4 % at M = 5. In flight: four stages of 12 KiB, three of them ahead: 24 KiB of weights a
// block. An A100 holds 3 blocks, an H100 4, so 72 to 96 KiB a multiprocessor, where 3.35 TB/s x 1 us / 132 = 25 KiB are
// needed. Shared memory then moves per 8 KiB of weights: 8 in, 8 out to fragments, activations M / 4 KiB in and as much
// out to each of four warps: 3.3 KiB per KiB at M = 8, 48 of its 128 bytes a clock at an H100's bandwidth.
//
// Above 16 rows, 64 rows x 128 columns in four warps of 32 x 64. The flops of all 64 rows take 15 us on an H100 beside
// 70 us of weights, so 17 rows lose nothing by padding, and weights are read once where 16-row tiles would read them 2
// to 4 times. At M = 2048 a step of 64 k moves 32 KiB from L2 for 1.05 MFLOP: at 5 TB/s of L2 160 TFLOP/s, a third to a
// half of what mma.sync can do. Activations rounded to 16 bits beforehand and a tile of 128 x 128 would double
// that at the same bits, for another kernel and a second pass over the activations; prefill of one prompt of 2048 takes
// 3 ms of this layer so, as much as 43 decode steps.
//
// float16 weights: an activation beyond 65504 becomes Inf in the fragment, and its row with it; as in any engine that
// keeps float16 activations. bfloat16 has the range of float32.
#include "device/cuda/launch.h"
#include "device/cuda/stored.cuh"
#include "ops/linear/config.h"
#include "ops/linear/linear.h"
#include "ops/linear/mma_codes.cuh"
#include "ops/linear/mma_kernel.cuh"
#include "ops/linear/plain_kernel.cuh"

namespace eagle31rt::cuda {

namespace {

using Rows16 = TileShape<16, 64, 16, 16, 64, 4>;
using Rows64 = TileShape<64, 128, 32, 64, 32, 4>;

struct PartialSums {
  const float* partial;  // [num_segments, num_rows, partial_stride]
  const float* bias;     // as in LinearParams, and so the rest
  const float* residual;
  float* output;
  int64_t num_rows;
  int64_t partial_stride;
  int64_t output_stride;
  int32_t out_features;
  int32_t num_segments;
};

constexpr int kSumThreads = 128;

// output = segment 0 + segment 1 + ... (+ bias) (+ residual): the sums of one block that walks through all segments.
// Grid: (rows, columns / 128); a thread per output, so a warp reads whole lines.
__global__ void __launch_bounds__(kSumThreads) add_segments_kernel(const __grid_constant__ PartialSums sums) {
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kSumThreads + threadIdx.x);
  if (column >= sums.out_features) return;
  const float* partial = sums.partial + row * sums.partial_stride + column;
  const int64_t plane = sums.num_rows * sums.partial_stride;
  float total = partial[0];
#pragma unroll 4
  for (int segment = 1; segment < sums.num_segments; ++segment) total += partial[segment * plane];
  const int64_t offset = row * sums.output_stride + column;
  if (sums.bias != nullptr) total += sums.bias[column];
  if (sums.residual != nullptr) total += sums.residual[offset];
  sums.output[offset] = total;
}

bool is_aligned(const void* pointer, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

MatrixProduct describe(const LinearParams& params, const LinearConfig& config) {
  MatrixProduct product{};
  product.input = params.input;
  product.weight = params.weight.data;
  product.bias = params.bias;
  product.residual = params.residual;
  product.output = params.output;
  product.num_rows = params.num_rows;
  product.input_stride = params.input_stride;
  product.weight_stride = params.weight.row_stride();
  product.output_stride = params.output_stride;
  product.in_features = static_cast<int32_t>(params.weight.in_features);
  product.out_features = static_cast<int32_t>(params.weight.out_features);
  product.segment_size = static_cast<int32_t>(config.segment_size);
  product.block_depth = product.in_features;
  product.vector_copies =
      is_aligned(params.input, 16) && params.input_stride % 4 == 0 && params.weight.in_features % 4 == 0;
  product.vector_stores =
      is_aligned(params.output, 8) && is_aligned(params.residual, 8) && params.output_stride % 2 == 0;
  product.strips = describe_strips(params.weight);
  return product;
}

template <typename Element, template <typename, typename> typename Law>
void launch_tile(const LinearConfig& config, const MatrixProduct& product, ExecutionContext& context) {
  const dim3 grid(static_cast<unsigned>(config.num_row_tiles), static_cast<unsigned>(config.num_column_tiles),
                  static_cast<unsigned>(config.spread ? config.num_segments : 1));
  if (config.tile == LinearTile::kRows16) {
    launch_mma<Element, Rows16, Law>("linear", product, grid, context);
  } else {
    launch_mma<Element, Rows64, Law>("linear", product, grid, context);
  }
}

// One block a segment: partial sums into the workspace, then their sum.
template <typename Element, template <typename, typename> typename Law>
void run_spread(const LinearParams& params, const LinearConfig& config, MatrixProduct product,
                ExecutionContext& context) {
  const int64_t stride = config.partial_stride();
  const int64_t num_floats = config.num_segments * params.num_rows * stride;
  product.output = static_cast<float*>(context.device->workspace(static_cast<size_t>(num_floats) * sizeof(float)));
  product.output_stride = stride;
  product.bias = product.residual = nullptr;
  product.block_depth = product.segment_size;
  product.vector_stores = true;
  launch_tile<Element, Law>(config, product, context);
  const PartialSums sums = {.partial = product.output,
                            .bias = params.bias,
                            .residual = params.residual,
                            .output = params.output,
                            .num_rows = params.num_rows,
                            .partial_stride = stride,
                            .output_stride = params.output_stride,
                            .out_features = product.out_features,
                            .num_segments = static_cast<int32_t>(config.num_segments)};
  const auto num_column_blocks = static_cast<unsigned>(divide_up(params.weight.out_features, kSumThreads));
  launch("linear_add_segments", add_segments_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows), num_column_blocks), .block = dim3(kSumThreads)}, context,
         sums);
}

void run_plain(const LinearParams& params, ExecutionContext& context) {
  PlainProduct product{};
  product.input = params.input;
  product.weight = static_cast<const float*>(params.weight.data);
  product.bias = params.bias;
  product.residual = params.residual;
  product.output = params.output;
  product.num_rows = params.num_rows;
  product.input_stride = params.input_stride;
  product.weight_stride = params.weight.row_stride();
  product.output_stride = params.output_stride;
  product.in_features = static_cast<int32_t>(params.weight.in_features);
  product.out_features = static_cast<int32_t>(params.weight.out_features);
  product.coded = params.weight;
  launch_plain("linear_float32", product, context);
}

template <typename Element, template <typename, typename> typename Law>
void run_mma(const LinearParams& params, ExecutionContext& context) {
  const LinearConfig config =
      choose_linear_config(params.num_rows, params.weight.out_features, params.weight.in_features);
  const MatrixProduct product = describe(params, config);
  if (config.spread) {
    run_spread<Element, Law>(params, config, product, context);
  } else {
    launch_tile<Element, Law>(config, product, context);
  }
}

}  // namespace

void linear(const LinearParams& params, ExecutionContext& context) {
  if (params.num_rows == 0) return;
  dispatch_stored(params.weight.dtype, [&]<typename Element>() {
    if constexpr (std::is_same_v<Element, float>) {
      run_plain(params, context);
    } else {
      dispatch_form(params.weight.form, [&]<template <typename, typename> typename Law>(LawOf<Law>) {
        run_mma<Element, Law>(params, context);
      });
    }
  });
}

}  // namespace eagle31rt::cuda
