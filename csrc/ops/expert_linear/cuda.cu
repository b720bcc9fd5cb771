// Every expert's weight times its own rows in one launch, on the tiles and the arithmetic of linear (mma_kernel.cuh).
//
// Grid: (row tiles of all experts, column tiles); which rows a block has is in expert_begin, on the device (config.h).
// The segments of K are those of linear for the same shape; a block adds up all of them. Rows that lie anywhere are
// gathered into the workspace first: 8 bytes a float beside 2 bytes of weight for each of 64 columns or more.
//
// Real shape: gate and up of Qwen3-30B-A3B, 128 experts, N = 1536, K = 2048, bfloat16: 6.3 MB an expert. Roofline in
// microseconds, M rows of 8 experts each:
//   M       experts  flops    A100  H100  H200  B200
//   1       8        0.05 G     25    15    10     6   bytes
//   16      82       0.8 G     260   154   108    65   bytes
//   2048    128      103 G     403   241   168   101   bytes and flops about equal
// Experts in MXFP4 (gpt-oss), int4 (Kimi K2) or FP8 (DeepSeek) have 27 %, 28 % and 52 % of these bytes (mma_codes.cuh):
// one row of 8 experts 4 to 8 us on an H100.
// One row: 8 x 24 blocks of 16 x 64 outputs for 132 multiprocessors. Above 16 rows an expert on average, tiles of 64 x
// 128.
#include "device/cuda/launch.h"
#include "device/cuda/stored.cuh"
#include "ops/expert_linear/config.h"
#include "ops/expert_linear/expert_linear.h"
#include "ops/linear/config.h"
#include "ops/linear/mma_codes.cuh"
#include "ops/linear/mma_kernel.cuh"
#include "ops/linear/plain_kernel.cuh"

namespace eagle31rt::cuda {

namespace {

using Rows16 = TileShape<16, 64, 16, 16, 64, 4>;
using Rows64 = TileShape<64, 128, 32, 64, 32, 4>;

struct Experts {
  const int32_t* expert_begin;  // [num_experts + 1]
  int64_t expert_stride;        // bytes
  int32_t num_experts;
  bool by_place;  // a block for each place, not for each possible tile
};

E31_DEVICE ExpertTile find_tile(const Experts& experts, int32_t rows) {
  const auto index = static_cast<int32_t>(blockIdx.x);
  return experts.by_place ? find_tile_at(experts.expert_begin, experts.num_experts, rows, index)
                          : find_expert_tile(experts.expert_begin, experts.num_experts, rows, index);
}

// The product of one expert; rows past the tile belong to others and count as missing.
template <typename Product>
E31_DEVICE Product product_of(const Product& all, const Experts& experts, const ExpertTile& tile) {
  Product product = all;
  product.weight = reinterpret_cast<decltype(product.weight)>(reinterpret_cast<const char*>(all.weight) +
                                                              tile.expert * experts.expert_stride);
  if (all.bias != nullptr) product.bias = all.bias + static_cast<int64_t>(tile.expert) * all.out_features;
  product.input = all.input + tile.first_place * all.input_stride;
  product.output = all.output + tile.first_place * all.output_stride;
  product.num_rows = tile.num_rows;
  return product;
}

template <typename Element, typename Tile, template <typename, typename> typename Law>
__global__ void __launch_bounds__(Tile::kThreads, 1)  // left to itself, ptxas takes 96 registers and spills (sm_90)
    expert_mma_kernel(const __grid_constant__ MatrixProduct all, const __grid_constant__ Experts experts) {
  const ExpertTile tile = find_tile(experts, Tile::kRows);
  if (tile.num_rows == 0) return;
  multiply_rows<Element, Tile, Law>(product_of(all, experts, tile), 0);
}

template <bool kCoded>
__global__ void __launch_bounds__(PlainTile::kThreads, 1)
    expert_plain_kernel(const __grid_constant__ PlainProduct all, const __grid_constant__ Experts experts) {
  __shared__ PlainTile shared;
  const ExpertTile tile = find_tile(experts, PlainTile::kRows);
  if (tile.num_rows == 0) return;
  multiply_plain_rows<kCoded>(product_of(all, experts, tile), 0, shared);
}

constexpr int kGatherThreads = 256;

__global__ void __launch_bounds__(kGatherThreads)
    gather_inputs_kernel(const float* input, const int32_t* rows, float* gathered, int32_t in_features) {
  const int64_t place = blockIdx.x;
  const float* source = input + int64_t{rows[place]} * in_features;
  float* target = gathered + place * in_features;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < in_features; i += kGatherThreads) target[i] = source[i];
}

// The input in the order of places.
const float* sorted_input(const ExpertLinearParams& params, ExecutionContext& context) {
  if (params.input_rows == nullptr) return params.input;
  const int64_t num_floats = params.num_places * params.weight.in_features;
  auto* gathered = static_cast<float*>(context.device->workspace(static_cast<size_t>(num_floats) * sizeof(float)));
  launch("expert_linear_gather", gather_inputs_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_places)), .block = dim3(kGatherThreads)}, context, params.input,
         params.input_rows, gathered, static_cast<int32_t>(params.weight.in_features));
  return gathered;
}

// What MatrixProduct and PlainProduct have in common.
template <typename Product>
Product describe(const ExpertLinearParams& params, const float* input) {
  Product product{};
  product.input = input;
  product.weight = static_cast<decltype(product.weight)>(params.weight.data);
  product.bias = params.bias;
  product.output = params.output;
  product.input_stride = params.weight.in_features;
  product.weight_stride = params.weight.row_stride();
  product.output_stride = params.weight.out_features;
  product.in_features = static_cast<int32_t>(params.weight.in_features);
  product.out_features = static_cast<int32_t>(params.weight.out_features);
  return product;
}

bool is_aligned(const void* pointer, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

struct ExpertGrid {
  Experts experts;
  dim3 grid;
};

ExpertGrid choose_grid(const ExpertLinearParams& params, int64_t rows, int64_t columns) {
  const int64_t num_tiles = num_expert_tiles(params.num_places, params.num_experts, rows);
  const bool by_place = params.num_places < num_tiles;
  return {{params.expert_begin, params.expert_stride, params.num_experts, by_place},
          dim3(static_cast<unsigned>(by_place ? params.num_places : num_tiles),
               static_cast<unsigned>(divide_up(params.weight.out_features, columns)))};
}

template <typename Element, typename Tile, template <typename, typename> typename Law>
void launch_tile(const ExpertLinearParams& params, const MatrixProduct& product, ExecutionContext& context) {
  const ExpertGrid grid = choose_grid(params, Tile::kRows, Tile::kColumns);
  launch("expert_linear", expert_mma_kernel<Element, Tile, Law>,
         {.grid = grid.grid,
          .block = dim3(Tile::kThreads),
          .shared_bytes = Tile::kStages * sizeof(typename Law<Element, Tile>::StageType)},
         context, product, grid.experts);
}

template <typename Element, template <typename, typename> typename Law>
void run_mma(const ExpertLinearParams& params, const float* input, ExecutionContext& context) {
  auto product = describe<MatrixProduct>(params, input);
  product.segment_size =
      static_cast<int32_t>(linear_segment_size(params.weight.out_features, params.weight.in_features));
  product.block_depth = product.in_features;
  product.vector_copies = is_aligned(input, 16) && product.in_features % 4 == 0;
  product.vector_stores = is_aligned(params.output, 8) && product.out_features % 2 == 0;
  product.strips = describe_strips(params.weight);
  if (params.num_places > 16 * params.num_experts) {
    launch_tile<Element, Rows64, Law>(params, product, context);
  } else {
    launch_tile<Element, Rows16, Law>(params, product, context);
  }
}

void run_plain(const ExpertLinearParams& params, const float* input, ExecutionContext& context) {
  auto product = describe<PlainProduct>(params, input);
  product.coded = params.weight;
  const ExpertGrid grid = choose_grid(params, PlainTile::kRows, PlainTile::kColumns);
  launch("expert_linear_float32",
         params.weight.form.is_quantised() ? expert_plain_kernel<true> : expert_plain_kernel<false>,
         {.grid = grid.grid, .block = dim3(PlainTile::kThreads)}, context, product, grid.experts);
}

}  // namespace

void expert_linear(const ExpertLinearParams& params, ExecutionContext& context) {
  if (params.num_places == 0) return;
  const float* input = sorted_input(params, context);
  dispatch_stored(params.weight.dtype, [&]<typename Element>() {
    if constexpr (std::is_same_v<Element, float>) {
      run_plain(params, input, context);
    } else {
      dispatch_form(params.weight.form, [&]<template <typename, typename> typename Law>(LawOf<Law>) {
        run_mma<Element, Law>(params, input, context);
      });
    }
  });
}

}  // namespace eagle31rt::cuda
