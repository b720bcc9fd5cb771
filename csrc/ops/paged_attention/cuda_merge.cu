// Merges the partial results (m, l, o) of a query's ranges in ascending order, with the arithmetic that a block uses
// for its own ranges (cuda_range.cuh).
//
// One block a query (row, head); thread t has the dims t, t + 128, ...; every warp reads whole 128-byte lines. Bytes: 4
// (value_dim + 2) a range and query. 8 rows x 32 heads of 128 at 4096 positions (8 ranges): 1.1 MB, mostly from L2,
// 0.5 us on an A100, 0.3 us on an H100, 0.2 us on an H200, 0.1 us on a B200: the launch costs more. Rows with one range
// are left alone; the kernel before has stored them.
#include "ops/paged_attention/cuda_launch.h"
#include "ops/paged_attention/cuda_range.cuh"

namespace eagle31rt::cuda {

namespace {

constexpr int kMergeThreads = 128;
constexpr int kMaxDimsPerThread = 4;

__global__ void __launch_bounds__(kMergeThreads)
    merge_ranges_kernel(const AttentionProblem problem, const RangePartials partials) {
  __shared__ int32_t request;
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (threadIdx.x == 0) request = -1;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < problem.num_requests; i += kMergeThreads) {
    if (row >= problem.row_begin[i] && row < problem.row_begin[i + 1] && problem.kv_length[i] >= 0) request = i;
  }
  __syncthreads();
  if (request < 0) return;
  const int end = visible_end(problem, request, row);
  const int first = range_of(visible_begin(problem, problem.kv_begin[request], end)), last = range_of(end - 1);
  if (first == last) return;
  float max = kMinusInfinity, sum = 0.0f, output[kMaxDimsPerThread] = {};
  for (int range = first; range <= last; ++range) {
    const int64_t place = static_cast<int64_t>(range) * problem.num_rows * problem.num_heads +
                          static_cast<int64_t>(row) * problem.num_heads + head;
    const float2 state = partials.state[place];
    const MergeFactors factors = merge_factors(max, state.x);
    max = factors.max;
    sum = merged(factors, sum, state.y);
#pragma unroll
    for (int i = 0; i < kMaxDimsPerThread; ++i) {
      const int dim = static_cast<int>(threadIdx.x) + i * kMergeThreads;
      if (dim < problem.value_dim) {
        output[i] = merged(factors, output[i], partials.output[place * problem.value_dim + dim]);
      }
    }
  }
  const float inverse = final_factor(problem, head, max, sum);
#pragma unroll
  for (int i = 0; i < kMaxDimsPerThread; ++i) {
    const int dim = static_cast<int>(threadIdx.x) + i * kMergeThreads;
    if (dim >= problem.value_dim) break;
    const int64_t place = static_cast<int64_t>(row) * problem.num_heads + head;
    problem.output[place * problem.value_dim + dim] = normalised(output[i], inverse);
  }
}

}  // namespace

void merge_ranges(const AttentionProblem& problem, const RangePartials& partials, ExecutionContext& context) {
  launch("merge_ranges", merge_ranges_kernel,
         {.grid = dim3(static_cast<unsigned>(problem.num_rows), static_cast<unsigned>(problem.num_heads)),
          .block = dim3(kMergeThreads)},
         context, problem, partials);
}

int32_t device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "asking for the current GPU");
  check(cudaDeviceGetAttribute(&value, attribute, device), "reading the GPU's properties");
  return value;
}

AttentionConfig config_of(const AttentionProblem& problem, int32_t max_queries) {
  return attention_config({.num_rows = problem.num_rows,
                           .num_requests = problem.num_requests,
                           .num_kv_heads = problem.num_heads / problem.group,
                           .group = problem.group,
                           .value_dim = problem.value_dim,
                           .max_length = int64_t{problem.page_table_stride} * problem.page_size,
                           .max_queries = max_queries,
                           .num_multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount)});
}

AttentionTiling tiling_of(const AttentionProblem& problem, const AttentionConfig& config, ExecutionContext& context) {
  AttentionTiling tiling{config.rows_per_tile, config.heads_per_tile, config.head_blocks, {config.num_ranges, {}, {}}};
  if (config.num_ranges > 1) {
    auto* workspace = static_cast<float*>(context.device->workspace(static_cast<size_t>(config.workspace_bytes)));
    const int64_t queries = int64_t{problem.num_rows} * problem.num_heads * config.num_ranges;
    tiling.partials.state = reinterpret_cast<float2*>(workspace);
    tiling.partials.output = workspace + 2 * queries;
  }
  return tiling;
}

}  // namespace eagle31rt::cuda
