// The entry of an EAGLE-3.1 draft in one kernel: rms_norm of each captured chunk (or of all) and fc.
//
// No normed activation is ever stored. rms_norm(x) @ w = (x * norm_weight) @ w / rms(x), and the right side needs the
// statistic only at the end: a block streams its rows once, makes fragments of x * norm_weight, sums the squares of x
// from the same registers, and multiplies the finished sums of a chunk by 1 / sqrt(mean + epsilon) before they join the
// total. A warp sums the squares of the rows whose outputs it holds, so nothing passes between warps; the warps beside
// each other and the N / 32 blocks repeat that, one fused multiply-add per activation and matrix fragment.
//
// Real shape: Llama-3.1-8B, three chunks of 4096 -> 4096, bfloat16: 101 MB of weights, 48 KB of activations a row.
// Roofline in microseconds, bytes up to some 100 rows:
//   M       flops    A100  H100  H200  B200
//   1       0.1 G      50    30    21    13
//   5       0.5 G      50    30    21    13
//   40      4.0 G      51    31    22    13
//   2048    206 G     661   208   208    92   flops
//
// K is not divided between blocks, so columns must fill the multiprocessors: 32 of them make 128 blocks of two warps,
// 97 % of an H100. In flight: nine stages of 8.25 KiB, eight ahead, 32 KiB of weights a block; two blocks fit an A100,
// whose 108 multiprocessors could not take 128 at once otherwise. A block's chain of matrix instructions (4 dependent
// ones per 4 KiB of weights, about 35 clocks each, and a barrier) allows some 20 bytes a clock; A100 asks for 13, H100
// for 14.5, H200 for 20.7, B200 for 29: there it falls short by a third. Activations cost 4 M bytes a k beside 64 bytes
// of weights, all but the first from L2: 6 % at M = 1, 31 % at M = 5. From 33 rows on 64 rows x 32 columns in four
// warps, 60 KiB in flight, two blocks an A100, and bound by issue: 530 instructions a KiB of weights, counted in PTX,
// are 56 us on an H100 at four a clock; and 64 x 128 once those are 66 blocks or more (config.h).
//
// Range: x * norm_weight is not divided by the rms when it is rounded. bfloat16 has float32's range. float16 would
// overflow at 65504, so norm weights enter times 2^-6 (mma_kernel.cuh): |x * norm_weight| up to 4.2e6 is exact in
// range, beyond it the row becomes Inf or NaN, and only that row. The sum of squares overflows where float32 does, at
// |x| near 1e19, as on the CPU.
//
// Against rms_norm followed by linear, one rounding (of the normed value) takes place before the scale instead of
// after: the same relative error.
#include "device/cuda/launch.h"
#include "device/cuda/stored.cuh"
#include "ops/fc_norm/config.h"
#include "ops/fc_norm/fc_norm.h"
#include "ops/linear/linear.h"
#include "ops/linear/mma_kernel.cuh"
#include "ops/linear/plain_kernel.cuh"

namespace eagle31rt::cuda {

void linear(const LinearParams& params, ExecutionContext& context);

namespace {

using Rows16 = TileShape<16, 32, 16, 16, 64, 9>;
using Rows64 = TileShape<64, 32, 32, 16, 64, 4>;
using Rows64Wide = TileShape<64, 128, 32, 64, 32, 4>;

int64_t norm_size(const FcNormParams& params) {
  return params.mode == FcNormMode::kWhole ? params.chunk_size * params.num_chunks : params.chunk_size;
}

MatrixProduct describe(const FcNormParams& params) {
  const auto is_aligned = [](const void* pointer, uintptr_t alignment) {
    return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
  };
  MatrixProduct product{};
  product.input = params.captured;
  product.norm_weight = params.norm_weight;
  product.weight = params.weight.data;
  product.bias = params.bias;
  product.output = params.output;
  product.num_rows = params.num_rows;
  product.input_stride = params.weight.in_features;
  product.weight_stride = params.weight.row_stride();
  product.output_stride = params.weight.out_features;
  product.in_features = static_cast<int32_t>(params.weight.in_features);
  product.out_features = static_cast<int32_t>(params.weight.out_features);
  product.segment_size = static_cast<int32_t>(norm_size(params));
  product.block_depth = product.in_features;
  product.vector_copies =
      is_aligned(params.captured, 16) && is_aligned(params.norm_weight, 16) && product.segment_size % 4 == 0;
  product.vector_stores = is_aligned(params.output, 8) && product.output_stride % 2 == 0;
  product.epsilon = params.epsilon;
  return product;
}

template <typename Element>
void run_mma(const FcNormParams& params, ExecutionContext& context) {
  const FcNormConfig config = choose_fc_norm_config(params.num_rows, params.weight.out_features);
  const MatrixProduct product = describe(params);
  const dim3 grid(static_cast<unsigned>(config.num_row_tiles), static_cast<unsigned>(config.num_column_tiles));
  switch (config.tile) {
    case FcNormTile::kRows16:
      return launch_mma<Element, Rows16, NormLaw>("fc_norm", product, grid, context);
    case FcNormTile::kRows64:
      return launch_mma<Element, Rows64, NormLaw>("fc_norm", product, grid, context);
    case FcNormTile::kRows64Wide:
      return launch_mma<Element, Rows64Wide, NormLaw>("fc_norm", product, grid, context);
  }
}

void run_plain(const FcNormParams& params, ExecutionContext& context) {
  PlainProduct product{};
  product.input = params.captured;
  product.norm_weight = params.norm_weight;
  product.weight = static_cast<const float*>(params.weight.data);
  product.bias = params.bias;
  product.output = params.output;
  product.num_rows = params.num_rows;
  product.input_stride = params.weight.in_features;
  product.weight_stride = params.weight.row_stride();
  product.output_stride = params.weight.out_features;
  product.in_features = static_cast<int32_t>(params.weight.in_features);
  product.out_features = static_cast<int32_t>(params.weight.out_features);
  product.norm_size = static_cast<int32_t>(norm_size(params));
  product.epsilon = params.epsilon;
  launch_plain("fc_norm_float32", product, context);
}

// Without a norm the operator is a linear layer.
void run_linear(const FcNormParams& params, ExecutionContext& context) {
  LinearParams linear_params{};
  linear_params.input = params.captured;
  linear_params.weight = params.weight;
  linear_params.bias = params.bias;
  linear_params.output = params.output;
  linear_params.num_rows = params.num_rows;
  linear_params.input_stride = params.weight.in_features;
  linear_params.output_stride = params.weight.out_features;
  linear(linear_params, context);
}

}  // namespace

void fc_norm(const FcNormParams& params, ExecutionContext& context) {
  if (params.mode == FcNormMode::kNone) return run_linear(params, context);
  E31_INVARIANT(!params.weight.form.is_quantised());
  dispatch_stored(params.weight.dtype, [&]<typename Element>() {
    if constexpr (std::is_same_v<Element, float>) {
      run_plain(params, context);
    } else {
      run_mma<Element>(params, context);
    }
  });
}

}  // namespace eagle31rt::cuda
