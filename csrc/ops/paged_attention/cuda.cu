// placeholder
#include "ops/paged_attention/cuda_launch.h"

namespace eagle31rt::cuda {

void paged_attention(const PagedAttentionParams& params, ExecutionContext& context) {
  if (params.num_rows == 0 || params.num_requests == 0) return;
  const KvCacheView& cache = params.cache;
  AttentionProblem problem = problem_of(params);
  problem.key = cache.key;
  problem.value = cache.value;
  problem.entry_stride = problem.key_dim = problem.value_dim = cache.head_dim;
  problem.head_stride = int64_t{cache.page_size} * cache.head_dim;
  problem.page_stride = problem.head_stride * cache.num_kv_heads;
  problem.page_size = cache.page_size;
  problem.group = params.num_heads / cache.num_kv_heads;
  if (cache.dtype == DType::kFloat32) return attend_float32(problem, context);
  if (cache.dtype == DType::kBFloat16) return attend_bfloat16(problem, context);
  attend_float16(problem, context);
}

}  // namespace eagle31rt::cuda
