// Small kernels of the kinds that a speculative-decoding engine has, each with deliberate mistakes that -DMUTANT=n puts
// in; 0 puts in none. Every mistake is one that people make, and stands at its place as `mutant(n)`.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

#ifndef MUTANT
#define MUTANT 0
#endif

__host__ __device__ constexpr bool mutant(int number) { return MUTANT == number; }

using bf16 = __nv_bfloat16;

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarpSize = 32;

// ---- inline PTX --------------------------------------------------------------------------------------------------

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes; zeros if not `valid`.
__device__ inline void cp_async(void* destination, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(destination)), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ inline void ldmatrix_x4(uint32_t (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (mutant(10)) {  // %5 and %6 in the wrong order
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %6, %5, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// ---- RMSNorm: one block a row, partial sums of the warps meet in shared memory -------------------------------------

__device__ inline float warp_sum(float value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

constexpr int kNormThreads = 256;

// y[row][i] = x[row][i] * rsqrt(mean(x[row]^2) + epsilon) * weight[i]; all [rows][width].
__global__ void __launch_bounds__(kNormThreads)
    rms_norm(const bf16* x, const bf16* weight, bf16* y, int width, float epsilon) {
  constexpr int kWarps = kNormThreads / kWarpSize;
  __shared__ float partial[kWarps];
  const bf16* row = x + static_cast<size_t>(blockIdx.x) * width;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kNormThreads) {
    const float value = __bfloat162float(row[i]);
    sum = fmaf(value, value, sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  if constexpr (!mutant(1)) __syncthreads();
  float total = lane < kWarps ? partial[lane] : 0.0f;
  if constexpr (mutant(7)) {  // only eight lanes arrive at a shuffle whose mask names all
    if (lane < kWarps) total = warp_sum(total);
    total = __shfl_sync(kFullWarp, total, 0);
  } else {
    total = warp_sum(total);
  }
  const float scale = rsqrtf(total / width + epsilon);
  bf16* out = y + static_cast<size_t>(blockIdx.x) * width;
  for (int i = threadIdx.x; i < width; i += kNormThreads) {
    out[i] = __float2bfloat16(__bfloat162float(row[i]) * scale * __bfloat162float(weight[i]));
  }
}

// ---- argmax in two stages: slices of the vocabulary, then one warp a row --------------------------------------------

struct Best {
  float value;
  int index;
};

__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ inline Best warp_best(Best best) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    best =
        better(best, {__shfl_xor_sync(kFullWarp, best.value, offset), __shfl_xor_sync(kFullWarp, best.index, offset)});
  }
  return best;
}

constexpr int kArgmaxThreads = 128;
__device__ inline Best worst() { return {-INFINITY, 0x7fffffff}; }

// partial[row][slice]: the best of a slice of logits [rows][vocabulary]; grid (slices, rows). done counts the blocks.
__global__ void __launch_bounds__(kArgmaxThreads)
    argmax_slices(const float* logits, Best* partial, unsigned* done, int* result, int vocabulary) {
  constexpr int kWarps = kArgmaxThreads / kWarpSize;
  __shared__ Best of_warp[kWarps];
  const int slices = gridDim.x, slice = blockIdx.x, row = blockIdx.y;
  const int per_slice = (vocabulary + slices - 1) / slices;
  const int end = min(vocabulary, (slice + 1) * per_slice);
  const float* values = logits + static_cast<size_t>(row) * vocabulary;
  Best best = worst();
  for (int i = slice * per_slice + threadIdx.x; i < end; i += kArgmaxThreads) best = better(best, {values[i], i});
  best = warp_best(best);
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  if (lane == 0) of_warp[warp] = best;
  if constexpr (!mutant(9)) __syncthreads();
  if (warp != 0) return;
  best = warp_best(lane < kWarps ? of_warp[lane] : worst());
  if (lane == 0) {
    partial[row * slices + slice] = best;
    atomicAdd(done, 1u);
  }
  if constexpr (mutant(12)) {  // the last block merges, as if blocks ran in the order of their numbers
    if (slice == slices - 1) {
      best = warp_best(lane < slices ? partial[row * slices + lane] : worst());
      if (lane == 0) result[row] = best.index;
    }
  }
}

// result[row] = index of the best partial; one warp a row, at most 32 slices.
__global__ void argmax_merge(const Best* partial, int* result, int slices) {
  const int lane = threadIdx.x, row = blockIdx.x;
  const Best best = warp_best(lane < slices ? partial[row * slices + lane] : worst());
  if (lane == 0) result[row] = best.index;
}

// ---- compaction: the accepted nodes of a request, in order; one warp a request
// ---------------------------------------

constexpr int kCompactWarps = 4;

// nodes[request][0..count): numbers of the accepted among 32 nodes, then -1.
__global__ void __launch_bounds__(kCompactWarps* kWarpSize)
    compact(const int* accepted, int* nodes, int* counts, int num_requests) {
  __shared__ int list[kCompactWarps][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int request = blockIdx.x * kCompactWarps + warp;
  if (request >= num_requests) return;
  const bool keep = accepted[request * kWarpSize + lane] != 0;
  const unsigned kept = __ballot_sync(kFullWarp, keep);
  int count = __popc(kept);
  list[warp][lane] = -1;
  __syncwarp();
  if (keep) list[warp][__popc(kept & ((1u << lane) - 1))] = lane;
  if constexpr (mutant(13)) {
    count = __shfl_sync(kFullWarp, count, 0);  // brings the lanes together, but orders no memory
  } else {
    __syncwarp();
  }
  nodes[request * kWarpSize + lane] = list[warp][lane];
  if (lane == 0) counts[request] = count;
}

// ---- linear layer: c[M][N] = a[M][K] b[N][K]^T, M <= 16; cp.async pipeline, ldmatrix, mma
// ----------------------------

constexpr int kTileM = 16, kTileN = 64, kTileK = 64, kStages = 3, kGemmThreads = 128;
constexpr int kLeadingDimension =
    kTileK + (mutant(11) ? 4 : 8);  // rows must begin at 16 bytes, and miss each other's banks
constexpr int kStageElements = (kTileM + kTileN) * kLeadingDimension;
constexpr int kGemmSharedBytes = kStages * kStageElements * 2 - (mutant(5) ? 512 : 0);

__device__ inline void load_stage(bf16* stage, const bf16* a, const bf16* b, int m, int k, int first_k) {
  constexpr int kChunks = kTileK / 8;
  for (int chunk = threadIdx.x; chunk < (kTileM + kTileN) * kChunks; chunk += kGemmThreads) {
    const int row = chunk / kChunks, column = chunk % kChunks * 8;
    bf16* destination = stage + row * kLeadingDimension + column;
    if (row < kTileM) {
      const int valid_row = row < m ? row : 0;
      cp_async(destination, a + static_cast<size_t>(valid_row) * k + first_k + column, row < m);
    } else {
      const int b_row = row - kTileM + (mutant(4) ? 1 : 0);
      cp_async(destination, b + static_cast<size_t>(blockIdx.x * kTileN + b_row) * k + first_k + column, true);
    }
  }
}

__device__ inline void multiply_stage(const bf16* stage, float (&sums)[2][4]) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const bf16* a = stage;
  const bf16* b = stage + (kTileM + warp * 16) * kLeadingDimension;
  for (int k = 0; k < kTileK; k += 16) {
    uint32_t of_a[4], of_b[4];
    ldmatrix_x4(of_a, a + lane % 16 * kLeadingDimension + k + lane / 16 * 8);
    ldmatrix_x4(of_b, b + (lane % 8 + lane / 16 * 8) * kLeadingDimension + k + lane / 8 % 2 * 8);
    constexpr int kSecond = mutant(6) ? 2 : 1;  // of_b: [n 0-7, k 0-7], [n 0-7, k 8-15], [n 8-15, k 0-7], ...
    mma_bf16(sums[0], of_a, of_b[0], of_b[kSecond]);
    mma_bf16(sums[1], of_a, of_b[3 - kSecond], of_b[3]);
  }
}

__global__ void __launch_bounds__(kGemmThreads) linear(const bf16* a, const bf16* b, float* c, int m, int n, int k) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  bf16* stages = reinterpret_cast<bf16*>(shared_bytes);
  const auto stage = [&](int tile) { return stages + tile % kStages * kStageElements; };
  const int tiles = k / kTileK;
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < tiles) load_stage(stage(tile), a, b, m, k, tile * kTileK);
    cp_async_commit();
  }
  float sums[2][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<kStages - (mutant(2) ? 1 : 2)>();
    if constexpr (!mutant(3)) __syncthreads();
    const int next = tile + kStages - 1;
    if (next < tiles) load_stage(stage(next), a, b, m, k, next * kTileK);
    if (mutant(8) && tile == 2 && next + 1 < tiles) load_stage(stage(tile), a, b, m, k, (next + 1) * kTileK);
    cp_async_commit();
    multiply_stage(stage(tile), sums);
  }
  cp_async_wait<0>();
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int part = 0; part < 2; ++part) {
    for (int element = 0; element < 4; ++element) {
      const int row = lane / 4 + element / 2 * 8;
      const int column = blockIdx.x * kTileN + warp * 16 + part * 8 + lane % 4 * 2 + element % 2;
      if (row < m) c[static_cast<size_t>(row) * n + column] = sums[part][element];
    }
  }
}
