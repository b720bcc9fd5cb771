// Paged attention over a float16 cache: cuda.cu.
#include "ops/paged_attention/cuda_instances.cuh"

namespace eagle31rt::cuda {

void attend_float16(const AttentionProblem& problem, ExecutionContext& context) {
  attend_stored<__half>(problem, context);
}

}  // namespace eagle31rt::cuda
