// Attention over a float32 cache, paged or latent, on plain fused multiply-adds: for tests and small models.
//
// One block of four warps for a row and up to eight heads of a KV head, all splits one after the other; keys and values
// are read once for these heads, in whole 128-byte lines, and not staged. Scores: a warp takes a position, its lanes
// the dims (dim d in lane d % 32, ascending), joined by shuffles. Outputs: a thread takes a dim, positions ascending.
// What is not visible is skipped. Bytes: 8 head_dim a position and row; one decode row of 8 KV heads of 128 at 4096
// positions: 34 MB, 17 us on an A100, 10 us on an H100, 7 us on an H200, 4 us on a B200 if there were blocks enough to
// reach the memory's rate; with one row there are 8.
#include "device/cuda/launch.h"
#include "ops/paged_attention/cuda_launch.h"
#include "ops/paged_attention/cuda_range.cuh"

namespace eagle31rt::cuda {

namespace {

constexpr int kHeads = 8, kWarps = 4, kThreads = kWarps * kWarpSize;

// Shared memory; the arrays of dims follow: queries [kHeads][key_dim], outputs [kHeads][value_dim].
struct Float32Memory {
  float weight[kHeads][kAttentionSplit];  // scores first
  float max[kHeads], sum[kHeads], rescale[kHeads];
  int64_t offset[kAttentionSplit];
  int32_t end[1];
  int32_t request;
};

struct Float32Block {
  const AttentionProblem& problem;
  const Tile& tile;
  Float32Memory& shared;
  float* query;
  float* output;

  E31_DEVICE void load() {
    for (int i = static_cast<int>(threadIdx.x); i < kHeads * problem.key_dim; i += kThreads) {
      const bool present = i / problem.key_dim < tile.num_heads;
      const int64_t place = tile.row_begin * problem.query_stride + int64_t{tile.head_begin} * problem.key_dim + i;
      query[i] = present ? problem.query[place] * problem.scale : 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kHeads * problem.value_dim; i += kThreads) output[i] = 0.0f;
    if (threadIdx.x < kHeads) {
      shared.max[threadIdx.x] = kMinusInfinity;
      shared.sum[threadIdx.x] = 0.0f;
    }
  }

  E31_DEVICE void score() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    for (int t = static_cast<int>(threadIdx.x) / kWarpSize; t < kAttentionSplit; t += kWarps) {
      float sum[kHeads] = {};
      const int64_t offset = shared.offset[t];
      if (offset >= 0) {
        const float* key = static_cast<const float*>(problem.key) + offset;
        for (int d = lane; d < problem.key_dim; d += kWarpSize) {
          const float k = key[d];
#pragma unroll
          for (int h = 0; h < kHeads; ++h) sum[h] = fmaf(query[h * problem.key_dim + d], k, sum[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        for (int step = 1; step < kWarpSize; step *= 2) sum[h] += __shfl_xor_sync(kFullWarp, sum[h], step);
        if (lane == 0) shared.weight[h][t] = offset < 0 ? kMinusInfinity : sum[h];
      }
    }
  }

  E31_DEVICE void weigh() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    for (int h = static_cast<int>(threadIdx.x) / kWarpSize; h < kHeads; h += kWarps) {
      float (&weight)[kAttentionSplit] = shared.weight[h];
      const float low = weight[lane], high = weight[lane + kWarpSize], old_max = shared.max[h];
      float max = fmaxf(low, high);
      for (int step = 1; step < kWarpSize; step *= 2) max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, step));
      max = fmaxf(max, old_max);
      const float shift = finite_or_zero(max);
      weight[lane] = exp2f(low - shift);
      weight[lane + kWarpSize] = exp2f(high - shift);
      float sum = weight[lane] + weight[lane + kWarpSize];
      for (int step = 1; step < kWarpSize; step *= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
      __syncwarp();
      if (lane == 0) {
        shared.rescale[h] = exp2f(old_max - shift);
        shared.max[h] = max;
        shared.sum[h] = fmaf(shared.sum[h], shared.rescale[h], sum);
      }
    }
  }

  E31_DEVICE void accumulate() {
    for (int d = static_cast<int>(threadIdx.x); d < problem.value_dim; d += kThreads) {
      float sum[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sum[h] = output[h * problem.value_dim + d] * shared.rescale[h];
      for (int t = 0; t < kAttentionSplit; ++t) {
        if (shared.offset[t] < 0) continue;
        const float value = static_cast<const float*>(problem.value)[shared.offset[t] + d];
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sum[h] = fmaf(shared.weight[h][t], value, sum[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) output[h * problem.value_dim + d] = sum[h];
    }
  }

  E31_DEVICE void store() {
    const int h = static_cast<int>(threadIdx.x);
    if (h < tile.num_heads) {
      shared.rescale[h] = final_factor(problem, tile.head_begin + h, shared.max[h], shared.sum[h]);
    }
    __syncthreads();
    const int64_t place = int64_t{tile.row_begin} * problem.num_heads + tile.head_begin;
    for (int i = static_cast<int>(threadIdx.x); i < tile.num_heads * problem.value_dim; i += kThreads) {
      problem.output[place * problem.value_dim + i] = normalised(output[i], shared.rescale[i / problem.value_dim]);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 4)
    attention_float32_kernel(const AttentionProblem problem, const AttentionTiling tiling) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Float32Memory& shared = *reinterpret_cast<Float32Memory*>(shared_bytes);
  float* const query = reinterpret_cast<float*>(shared_bytes + sizeof(Float32Memory));
  Tile tile = find_tile(problem, tiling, &shared.request);
  if (tile.request < 0) return;
  const int tile_end = store_row_ends(problem, tile, shared.end);
  const Units units = units_of(problem, tiling.partials, tile, tile_end);
  Float32Block block{problem, tile, shared, query, query + kHeads * problem.key_dim};
  block.load();
  for (int unit = 0; unit < units.count(); ++unit) {
    if (threadIdx.x < kAttentionSplit) {
      shared.offset[threadIdx.x] =
          entry_offset(problem, tile, units, unit, tile_end, shared.end, static_cast<int>(threadIdx.x));
    }
    __syncthreads();
    block.score();
    __syncthreads();
    block.weigh();
    __syncthreads();
    block.accumulate();
    __syncthreads();
  }
  block.store();
}

}  // namespace

void attend_float32(const AttentionProblem& problem, ExecutionContext& context) {
  const int32_t heads = problem.group < kHeads ? problem.group : kHeads;
  const int32_t head_blocks = (problem.group + heads - 1) / heads;
  const AttentionTiling tiling{1, heads, head_blocks, {1, nullptr, nullptr}};
  const size_t dims = static_cast<size_t>(problem.key_dim + problem.value_dim);
  launch("attention_float32", attention_float32_kernel,
         {.grid = dim3(static_cast<unsigned>(problem.num_rows + problem.num_requests),
                       static_cast<unsigned>(problem.num_heads / problem.group * head_blocks)),
          .block = dim3(kThreads),
          .shared_bytes = sizeof(Float32Memory) + kHeads * dims * sizeof(float)},
         context, problem, tiling);
}

}  // namespace eagle31rt::cuda
