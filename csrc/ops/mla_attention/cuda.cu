// Latent attention on CUDA: paged attention (ops/paged_attention/cuda.cu: tiles, units, arithmetic, ranges, workspace)
// with one KV head whose entries are key and value at once.
//
// Problem: every head of a row attends over the same entries of 576 elements. Per entry 1152 bytes (bfloat16) serve 64
// heads with 2 * 64 * (576 + 512) = 139000 operations, 121 a byte: near the balance of an A100 (156) and of mma.sync on
// an H100.
//
// Threads to data: a block has a tile of 64 queries (one row of 64 heads, or more rows of fewer) and eight warps, where
// shared memory takes it (202 KiB: H100, H200, B200), else 32 (157 KiB: A100). Halves of a split (32 entries) pass
// through a ring of three in shared memory: both halves of the current split, which are read as keys (ldmatrix) and
// then as values (transposed), and one of the next on its way; the values of a half done, its place takes the next. So
// an entry is read from global memory once a block, 64 queries share it, and each copy overlaps with two products. Two
// (four) warps share 16 queries: 32 (16) positions each for the scores, then 256 (128) dims each of the outputs, which
// stay in registers.
//
// Bytes and time at the roofline, 64 heads, latent 512 + rope 64 in bfloat16 (Kimi K2 drafts), 8 requests at 4096, one
// layer: 38 MB, 4.6 GFLOP: 19 us on an A100 by memory and 15 us by the matrix unit, 11 and 5 us on an H100, 8 and 5 us
// on an H200, 5 and 2 us on a B200. On an A100 the two blocks of a row read each entry from memory and from L2.
//
// Why this configuration: fewer queries a block would read entries more often, more do not fit; the outputs of 64
// queries take 128 registers of 256 threads. Partial results of ranges are large beside the entries (64 heads x 2 KiB a
// range of 590 KB): 45 % more traffic, mostly in L2, while a lone request spreads its ranges over the GPU, and none in
// larger batches.
#include "base/check.h"
#include "ops/mla_attention/cuda_latent.cuh"
#include "ops/mla_attention/mla_attention.h"
#include "ops/paged_attention/cuda_launch.h"

namespace eagle31rt::cuda {

namespace {

template <typename Element, int kKeyDim, int kValueDim, int kRowWarps, int kSplitWarps>
void attend_with(const AttentionProblem& problem, const AttentionConfig& config, ExecutionContext& context) {
  using Traits = LatentTraits<Element, kKeyDim, kValueDim, kRowWarps, kSplitWarps>;
  launch_tiles<Traits, LatentMemory<Traits>>("mla_attention", latent_attention_kernel<Traits>, problem, config,
                                             context);
}

template <typename Element, int kKeyDim, int kValueDim>
void attend_dims(const AttentionProblem& problem, ExecutionContext& context) {
  using Large = LatentTraits<Element, kKeyDim, kValueDim, 4, 2>;
  const int64_t shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const bool fits_large = static_cast<int64_t>(sizeof(LatentMemory<Large>)) <= shared_bytes;
  const AttentionConfig config = config_of(problem, fits_large ? 64 : 32);
  if (config.tile_queries == 64) return attend_with<Element, kKeyDim, kValueDim, 4, 2>(problem, config, context);
  attend_with<Element, kKeyDim, kValueDim, 2, 4>(problem, config, context);
}

template <typename Element>
void attend_stored(const AttentionProblem& problem, ExecutionContext& context) {
  if (problem.key_dim <= 96 && problem.value_dim <= 64) return attend_dims<Element, 96, 64>(problem, context);
  attend_dims<Element, kMaxLatentEntry, kMaxLatentDim>(problem, context);
}

}  // namespace

void mla_attention(const MlaAttentionParams& params, ExecutionContext& context) {
  if (params.num_rows == 0 || params.num_requests == 0) return;
  const LatentCacheView& cache = params.cache;
  AttentionProblem problem = problem_of(params);
  problem.key = problem.value = cache.data;
  problem.entry_stride = problem.key_dim = cache.entry_dim();
  problem.value_dim = cache.latent_dim;
  problem.page_stride = int64_t{cache.page_size} * cache.entry_dim();
  problem.page_size = cache.page_size;
  problem.group = params.num_heads;
  if (cache.dtype == DType::kFloat32) return attend_float32(problem, context);
  if (cache.dtype == DType::kBFloat16) return attend_stored<__nv_bfloat16>(problem, context);
  attend_stored<__half>(problem, context);
}

}  // namespace eagle31rt::cuda
