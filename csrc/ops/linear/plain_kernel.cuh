// The kernel of linear and fc_norm for float32 weights: fused multiply-add, one chain per output over all of K in
// ascending order, which is the arithmetic of the CPU, so the bits are equal too. For small models and for tests; there
// are no segments and no asynchronous copies.
//
// A block of 128 threads computes 16 rows x 64 columns, a thread rows i and i + 8 of columns j, j + 16, j + 32, j + 48.
// Per step of 32 k a thread reads 6 floats for 8 multiply-adds from shared memory; a row of weights takes 33 floats
// there, so 16 columns lie in different banks, and the activation is the same word for all of them.
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/linear/packed_weight.h"

namespace eagle31rt::cuda {

struct PlainProduct {
  const float* input;        // [num_rows, input_stride]
  const float* norm_weight;  // [in_features], or null: no norm
  const float* weight;       // [out_features, weight_stride]; of a quantised weight its first byte
  const float* bias;         // [out_features] or null
  const float* residual;     // [num_rows, output_stride] or null; may be the same memory as output
  float* output;             // [num_rows, output_stride]
  int64_t num_rows;
  int64_t input_stride;
  int64_t weight_stride;
  int64_t output_stride;
  int32_t in_features;
  int32_t out_features;
  int32_t norm_size;  // width of a norm; in_features / norm_size is at most kMaxNorms
  float epsilon;
  PackedWeightView coded = {};  // describes a quantised weight; data is not used
};

// kCoded: the weight is quantised. A kernel of its own, for widening takes half of the registers.
template <bool kCoded>
E31_DEVICE float plain_weight(const PlainProduct& product, int64_t output, int k) {
  if constexpr (!kCoded) return product.weight[output * product.weight_stride + k];
  PackedWeightView weight = product.coded;
  weight.data = product.weight;
  return dequantised_value(weight, output, k);
}

struct PlainTile {
  static constexpr int kRows = 16;
  static constexpr int kColumns = 64;
  static constexpr int kDepth = 32;
  static constexpr int kThreads = 128;
  static constexpr int kMaxNorms = 8;

  float activations[kRows][kDepth];
  float weights[kColumns][kDepth + 1];
  float inverse_rms[kRows][kMaxNorms];
};

// 1 / sqrt(mean(x^2) + epsilon) of every norm of the block's rows, by half warps: element i in lane i % 16, ascending,
// joined as in ops/rms_norm/row_norm.h.
E31_DEVICE void measure_rows(const PlainProduct& product, int64_t first_row, int num_rows, PlainTile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int num_norms = product.in_features / product.norm_size;
  for (int row = static_cast<int>(threadIdx.x) / 16; row < PlainTile::kRows; row += PlainTile::kThreads / 16) {
    for (int norm = 0; norm < num_norms; ++norm) {
      float sum = 0.0f;
      if (row < num_rows) {
        const float* x = product.input + (first_row + row) * product.input_stride + norm * product.norm_size;
        for (int i = lane; i < product.norm_size; i += 16) sum = fmaf(x[i], x[i], sum);
      }
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
      if (lane != 0) continue;
      const float mean = sum / static_cast<float>(product.norm_size);
      tile.inverse_rms[row][norm] = 1.0f / sqrtf(mean + product.epsilon);
    }
  }
}

// Activations (normed) and weights of k .. k + kDepth - 1; zeros past the matrix.
template <bool kCoded>
E31_DEVICE void load_plain_tile(const PlainProduct& product, int64_t first_row, int first_column, int first_k,
                                PlainTile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % PlainTile::kDepth;
  const int group = static_cast<int>(threadIdx.x) / PlainTile::kDepth;
  constexpr int kGroups = PlainTile::kThreads / PlainTile::kDepth;
  const int k = first_k + lane;
  const bool has_k = k < product.in_features;
  for (int row = group; row < PlainTile::kRows; row += kGroups) {
    float x = 0.0f;
    if (has_k && first_row + row < product.num_rows) {
      x = product.input[(first_row + row) * product.input_stride + k];
      if (product.norm_weight != nullptr) {
        x = x * tile.inverse_rms[row][k / product.norm_size] * product.norm_weight[k];
      }
    }
    tile.activations[row][lane] = x;
  }
  for (int column = group; column < PlainTile::kColumns; column += kGroups) {
    const int64_t output = first_column + column;
    tile.weights[column][lane] =
        has_k && output < product.out_features ? plain_weight<kCoded>(product, output, k) : 0.0f;
  }
}

E31_DEVICE void store_plain(const PlainProduct& product, int64_t row, int column, float sum) {
  if (row >= product.num_rows || column >= product.out_features) return;
  const int64_t offset = row * product.output_stride + column;
  if (product.bias != nullptr) sum += product.bias[column];
  if (product.residual != nullptr) sum += product.residual[offset];
  product.output[offset] = sum;
}

// The tile of rows from first_row on and columns from blockIdx.y on.
template <bool kCoded>
E31_DEVICE void multiply_plain_rows(const PlainProduct& product, int64_t first_row, PlainTile& tile) {
  const int first_column = static_cast<int>(blockIdx.y) * PlainTile::kColumns;
  const int row = static_cast<int>(threadIdx.x) / 16;
  const int column = static_cast<int>(threadIdx.x) % 16;
  if (product.norm_weight != nullptr) {
    const int64_t num_rows = min(product.num_rows - first_row, int64_t{PlainTile::kRows});
    measure_rows(product, first_row, static_cast<int>(num_rows), tile);
  }
  float sums[2][4] = {};
  for (int k = 0; k < product.in_features; k += PlainTile::kDepth) {
    __syncthreads();
    load_plain_tile<kCoded>(product, first_row, first_column, k, tile);
    __syncthreads();
    const int depth = min(product.in_features - k, PlainTile::kDepth);
#pragma unroll 4
    for (int i = 0; i < depth; ++i) {
      const float x[2] = {tile.activations[row][i], tile.activations[row + 8][i]};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = tile.weights[column + 16 * j][i];
        sums[0][j] = fmaf(x[0], weight, sums[0][j]);
        sums[1][j] = fmaf(x[1], weight, sums[1][j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    store_plain(product, first_row + row, first_column + column + 16 * j, sums[0][j]);
    store_plain(product, first_row + row + 8, first_column + column + 16 * j, sums[1][j]);
  }
}

// Grid: (row tiles, column tiles).
template <bool kCoded>
__global__ void __launch_bounds__(PlainTile::kThreads, 1) plain_kernel(const __grid_constant__ PlainProduct product) {
  __shared__ PlainTile tile;
  multiply_plain_rows<kCoded>(product, static_cast<int64_t>(blockIdx.x) * PlainTile::kRows, tile);
}

inline void launch_plain(const char* name, const PlainProduct& product, ExecutionContext& context) {
  const auto tiles = [](int64_t size, int64_t tile) { return static_cast<unsigned>((size + tile - 1) / tile); };
  launch(name, product.coded.form.is_quantised() ? plain_kernel<true> : plain_kernel<false>,
         {.grid = dim3(tiles(product.num_rows, PlainTile::kRows), tiles(product.out_features, PlainTile::kColumns)),
          .block = dim3(PlainTile::kThreads)},
         context, product);
}

}  // namespace eagle31rt::cuda
