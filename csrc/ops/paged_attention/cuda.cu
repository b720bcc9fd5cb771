// Paged attention on CUDA.
//
// Problem: for every query (row, head) softmax(q k) v over what its row sees, with keys and values in scattered pages.
// Decoding and verification stream the cache once and are bound by memory; prefill is bound by the matrix unit.
//
// Threads to data: a block has a tile of up to 16, 32 or 64 queries: rows of one request times the query heads of one
// KV head, so a key is read once for all of them. It goes through splits of 64 positions; keys and values of a split
// pass through a ring of half splits in shared memory (cp.async, 16 bytes a thread, rows padded by 16 bytes so that
// neither the copies of 64 or more dims nor ldmatrix meet bank conflicts). A warp has 16 queries; four, two or one
// warps share them, dividing first the positions of the scores, then the dims of the outputs (scores go through shared
// memory in between). cuda_float32.cu has the kernel for float32 caches.
//
// Arithmetic of a query, which no company changes (scale and log2(e) are in q; q and p in the cache's 16-bit type, all
// else float32, one matrix instruction shape):
//   split    s = q k in the order of the instruction over dims; M' = max(M, max s); p = 2^(s - M'); sums shrink by
//            2^(M - M'); L += p 1 and O += p v in the order of the instruction over positions, with the *rounded* p in
//            both, so that the weights of a query sum to one
//   range    8 splits, beginning at multiples of 512 positions, from (-inf, 0, 0)
//   merge    ranges in ascending order as in paged_attention.h; output = O * (1 / L); a sink is merged last
// Position n of a split is always in the same place of a fragment; splits of masked rows are computed row by row with
// the ancestors gathered in logical order. What a query does not see gets p = 0 and meets values of 0, with one
// exception: a causal row shares splits with other rows of its request and meets finite values of positions after its
// own, or before its window, with p = 0, which adds nothing. (If one of them is not finite the rows of that split are
// computed one by one.) So ranges may be merged in the block that made them (few ranges or many tiles) or by a second
// kernel (cuda_merge.cu), whichever fills the GPU: config.h.
//
// Workspace: (head_dim + 2) floats for every query and range, only while fewer than two blocks a multiprocessor would
// run otherwise, and at most 256 MiB; 0 for prefill. The grid follows num_rows, num_requests and the page table's
// width; row_begin, kv_begin, kv_length and pages are read on the device, so that a graph may be replayed with others.
//
// Bytes and time at the roofline, Llama-3.1-8B (32 query, 8 KV heads of 128, bfloat16), one layer:
//   decode, 8 requests at 4096: 134 MB, 0.5 GFLOP: 67 us on an A100, 40 us on an H100, 28 us on an H200, 17 us on a
//   B200 512 rows of prefill behind 3584: 32 GFLOP, 17 MB: 103 us on an A100, 33 us on an H100 and H200, 14 us on a
//   B200
// mma.sync reaches the matrix unit's rate on an A100 and about 60 % of it on an H100.
//
// Why this configuration: 16 queries and four stages (78 KiB) let two blocks a multiprocessor keep 100 KiB in flight,
// more than any of these GPUs needs (8 TB/s x 0.8 us / 148 = 43 KiB). 64 queries and two stages (52 KiB, 220 registers)
// let two blocks fill one another's softmax. Ranges of 512 positions make partial results 2 % of the bytes for 4
// queries and 10 % for 24; with 256 they would be 20 %.
#include "base/check.h"
#include "ops/paged_attention/cuda_launch.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::cuda {

void paged_attention(const PagedAttentionParams& params, ExecutionContext& context) {
  if (params.num_rows == 0 || params.num_requests == 0) return;
  const KvCacheView& cache = params.cache;
  E31_INVARIANT(cache.key_layout == KeyLayout::kDimsFastest);
  AttentionProblem problem = problem_of(params);
  problem.key = cache.key;
  problem.value = cache.value;
  problem.entry_stride = problem.key_dim = problem.value_dim = cache.head_dim;
  problem.head_stride = int64_t{cache.page_size} * cache.head_dim;
  problem.page_stride = problem.head_stride * cache.num_kv_heads;
  problem.page_size = cache.page_size;
  problem.group = params.num_heads / cache.num_kv_heads;
  problem.sinks = params.sinks;
  problem.sliding_window = params.sliding_window;
  if (cache.dtype == DType::kFloat32) return attend_float32(problem, context);
  if (cache.dtype == DType::kBFloat16) return attend_bfloat16(problem, context);
  attend_float16(problem, context);
}

}  // namespace eagle31rt::cuda
