// Paged attention over a bfloat16 cache: cuda.cu.
#include "ops/paged_attention/cuda_instances.cuh"

namespace eagle31rt::cuda {

void attend_bfloat16(const AttentionProblem& problem, ExecutionContext& context) {
  attend_stored<__nv_bfloat16>(problem, context);
}

}  // namespace eagle31rt::cuda
