// The kernel of linear and fc_norm for 16-bit weights: input @ weight^T by mma.m16n8k16, float32 accumulation.
//
// Arithmetic of one output, the same for every tile shape and number of rows: for each segment of K an accumulator runs
// from zero through its multiples of 16 in ascending order; the segments, each multiplied by its row's scale in
// fc_norm, are added in ascending order; then + bias, then + residual.
#pragma once

#include "device/cuda/launch.h"
#include "ops/linear/mma_tile.cuh"

namespace eagle31rt::cuda {

// float16 ends at 65504, and x * norm_weight of a captured state may lie beyond. So norm weights are taken times 2^-6
// and the row's scale times 2^6, both exact: products up to 4.2e6 fit. What that costs: products below 64 * 2^-14 lose
// bits, an error of at most 2^-19 = 1.9e-6 in a row whose root mean square is the unit, a hundredth of the rounding of
// its larger values. bfloat16 has the range of float32.
template <typename Element>
constexpr float kNormPrescale = std::is_same_v<Element, __half> ? 0x1p-6f : 1.0f;

// Plain rounding of activations.
template <typename Element, typename Tile>
struct PlainLaw {
  using StageType = Stage<Tile>;
  using SourceType = TileSource<Element, Tile>;

  E31_DEVICE void make_fragment(const ActivationStage<Tile>& stage, const Position<Tile>& position, int block, int step,
                                int num_rows, uint32_t (&fragment)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = position.activations(stage, 16 * block + i % 2 * 8, 16 * step + i / 2 * 8, num_rows);
      fragment[i] = pack_pair<Element>(x.x, x.y);
    }
  }
  E31_DEVICE void end_segment(const MatrixProduct&, int) {}
  E31_DEVICE float apply(float sum, int, int) const { return sum; }
};

// Multiplies activations by the norm weight and sums their squares on the way: thread `lane` sees the k of its pair
// columns of rows lane / 4 and lane / 4 + 8, which are the rows of its accumulators. Its chain of squares runs in
// ascending k, and the four lanes of a row join at the end of the segment.
template <typename Element, typename Tile>
struct NormLaw {
  using StageType = NormStage<Tile>;
  using SourceType = TileSource<Element, Tile>;
  float squares[Tile::kRowBlocks][2] = {};
  float scale[Tile::kRowBlocks][2];

  E31_DEVICE void make_fragment(const StageType& stage, const Position<Tile>& position, int block, int step,
                                int num_rows, uint32_t (&fragment)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first_k = 16 * step + i / 2 * 8;
      const float2 x = position.activations(stage, 16 * block + i % 2 * 8, first_k, num_rows);
      const float2 weight = *reinterpret_cast<const float2*>(stage.norm_weight + first_k + position.pair);
      float& sum = squares[block][i % 2];
      sum = fmaf(x.y, x.y, fmaf(x.x, x.x, sum));
      fragment[i] =
          pack_pair<Element>(x.x * (weight.x * kNormPrescale<Element>), x.y * (weight.y * kNormPrescale<Element>));
    }
  }

  E31_DEVICE void end_segment(const MatrixProduct& product, int width) {
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = squares[block][half];
        sum += __shfl_xor_sync(kFullWarp, sum, 1);
        sum += __shfl_xor_sync(kFullWarp, sum, 2);
        const float mean = sum / static_cast<float>(width);
        scale[block][half] = (1.0f / sqrtf(mean + product.epsilon)) * (1.0f / kNormPrescale<Element>);
        squares[block][half] = 0.0f;
      }
    }
  }
  E31_DEVICE float apply(float sum, int block, int half) const { return sum * scale[block][half]; }
};

template <typename Tile>
using Accumulators = float[Tile::kRowBlocks][Tile::kColumnBlocks][4];

// One tile of K onto the accumulators.
template <typename Element, typename Tile, typename Law>
E31_DEVICE void multiply_tile(const typename Law::StageType& stage, const Position<Tile>& position,
                              const typename Law::SourceType& source, Law& law, Accumulators<Tile>& sums) {
#pragma unroll
  for (int step = 0; step < Tile::kDepth / 16; ++step) {
    uint32_t a[Tile::kRowBlocks][4];
#pragma unroll
    for (int block = 0; block < Tile::kRowBlocks; ++block) {
      law.make_fragment(stage, position, block, step, source.num_rows, a[block]);
    }
#pragma unroll
    for (int column = 0; column < Tile::kColumnBlocks; column += 2) {
      uint32_t b[4];
      source.weights(stage, position, 8 * column, step, b);
#pragma unroll
      for (int block = 0; block < Tile::kRowBlocks; ++block) {
        mma_m16n8k16<Element>(sums[block][column], a[block], b[0], b[1]);
        mma_m16n8k16<Element>(sums[block][column + 1], a[block], b[2], b[3]);
      }
    }
  }
}

// Every element = value.
template <typename Tile>
E31_DEVICE void fill(Accumulators<Tile>& sums, float value) {
#pragma unroll
  for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
    for (int column = 0; column < Tile::kColumnBlocks; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[block][column][i] = value;
    }
  }
}

// totals += scaled sums, sums = 0.
template <typename Tile, typename Law>
E31_DEVICE void add_segment(const Law& law, Accumulators<Tile>& sums, Accumulators<Tile>& totals) {
#pragma unroll
  for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
    for (int column = 0; column < Tile::kColumnBlocks; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        totals[block][column][i] += law.apply(sums[block][column][i], block, i / 2);
        sums[block][column][i] = 0.0f;
      }
    }
  }
}

// Two neighbouring outputs, + bias, + residual.
E31_DEVICE void store_pair(const MatrixProduct& product, int64_t row, int column, float low, float high) {
  const int64_t plane = static_cast<int64_t>(blockIdx.z) * product.num_rows;
  const int64_t offset = (plane + row) * product.output_stride + column;
  const bool has_second = column + 1 < product.out_features;
  if (product.bias != nullptr) {
    low += product.bias[column];
    if (has_second) high += product.bias[column + 1];
  }
  if (product.vector_stores && has_second) {
    if (product.residual != nullptr) {
      const float2 residual = *reinterpret_cast<const float2*>(product.residual + offset);
      low += residual.x;
      high += residual.y;
    }
    *reinterpret_cast<float2*>(product.output + offset) = {low, high};
    return;
  }
  if (product.residual != nullptr) {
    low += product.residual[offset];
    if (has_second) high += product.residual[offset + 1];
  }
  product.output[offset] = low;
  if (has_second) product.output[offset + 1] = high;
}

template <typename Tile>
E31_DEVICE void store_tile(const MatrixProduct& product, int64_t tile_row, const Position<Tile>& position,
                           const Accumulators<Tile>& totals) {
  const int64_t first_row = tile_row + position.row;
  const int first_column = static_cast<int>(blockIdx.y) * Tile::kColumns + position.column;
#pragma unroll
  for (int block = 0; block < Tile::kRowBlocks; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + 16 * block + 8 * half;
      if (row >= product.num_rows) continue;
#pragma unroll
      for (int block_column = 0; block_column < Tile::kColumnBlocks; ++block_column) {
        const int column = first_column + 8 * block_column;
        const float* pair = totals[block][block_column] + 2 * half;
        if (column < product.out_features) store_pair(product, row, column, pair[0], pair[1]);
      }
    }
  }
}

// The tile of rows from first_row on, columns from blockIdx.y on and the share blockIdx.z of K.
template <typename Element, typename Tile, template <typename, typename> typename LawTemplate>
E31_DEVICE void multiply_rows(const MatrixProduct& product, int64_t first_row) {
  using Law = LawTemplate<Element, Tile>;
  extern __shared__ __align__(128) unsigned char shared_memory[];
  auto* stages = reinterpret_cast<typename Law::StageType*>(shared_memory);
  const typename Law::SourceType source(product, first_row);
  const Position<Tile> position;
  Cursor ahead(product, Tile::kDepth);
  Cursor cursor = ahead;
  const auto copy_next = [&](int slot) {
    if (!ahead.done()) {
      source.copy(stages[slot], ahead);
      ahead.advance(Tile::kDepth, product.segment_size);
    }
    cp_async_commit();  // an empty group at the end, so that counting groups stays right
  };
  for (int slot = 0; slot < Tile::kStages - 1; ++slot) copy_next(slot);

  Law law;
  Accumulators<Tile> sums, totals;
  fill<Tile>(sums, 0.0f);
  fill<Tile>(totals, -0.0f);  // x + -0 is x for every x, so the first segment counts as it is
  int slot = 0;
  while (!cursor.done()) {
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();  // this tile has arrived for all, and all are done with the slot that is filled next
    copy_next(slot == 0 ? Tile::kStages - 1 : slot - 1);
    multiply_tile<Element, Tile>(stages[slot], position, source, law, sums);
    if (cursor.ends_segment(Tile::kDepth)) {
      law.end_segment(product, cursor.segment_end - cursor.segment_begin);
      add_segment<Tile>(law, sums, totals);
    }
    cursor.advance(Tile::kDepth, product.segment_size);
    slot = slot == Tile::kStages - 1 ? 0 : slot + 1;
  }
  cp_async_wait<0>();
  store_tile(product, first_row, position, totals);
}

// Grid: (row tiles, column tiles, shares of K). Row tiles first, so that blocks that run together read the same
// weights.
template <typename Element, typename Tile, template <typename, typename> typename LawTemplate>
__global__ void __launch_bounds__(Tile::kThreads) mma_kernel(const __grid_constant__ MatrixProduct product) {
  multiply_rows<Element, Tile, LawTemplate>(product, static_cast<int64_t>(blockIdx.x) * Tile::kRows);
}

template <typename Element, typename Tile, template <typename, typename> typename LawTemplate>
void launch_mma(const char* name, const MatrixProduct& product, dim3 grid, ExecutionContext& context) {
  launch(name, mma_kernel<Element, Tile, LawTemplate>,
         {.grid = grid,
          .block = dim3(Tile::kThreads),
          .shared_bytes = Tile::kStages * sizeof(typename LawTemplate<Element, Tile>::StageType)},
         context, product);
}

}  // namespace eagle31rt::cuda
