// Host side of CUDA attention, for the operators over paged keys and values and over latent rows.
#pragma once

#include "device/cuda/launch.h"
#include "eagle31rt/dtype.h"
#include "ops/paged_attention/cuda_problem.cuh"

namespace eagle31rt::cuda {

// Fields that both operators' parameters have; the caller sets those of the cache.
template <typename Params>
AttentionProblem problem_of(const Params& params) {
  constexpr float kLog2OfE = 1.44269504f;
  AttentionProblem problem{};
  problem.query = params.query;
  problem.output = params.output;
  problem.query_stride = params.query_stride;
  problem.num_heads = params.num_heads;
  problem.page_table = params.page_table;
  problem.row_begin = params.row_begin;
  problem.kv_begin = params.kv_begin;
  problem.kv_length = params.kv_length;
  problem.ancestor_mask = params.ancestor_mask;
  problem.page_table_stride = params.page_table_stride;
  problem.mask_words = params.mask_words;
  problem.num_requests = static_cast<int32_t>(params.num_requests);
  problem.num_rows = static_cast<int32_t>(params.num_rows);
  problem.scale = params.scale * kLog2OfE;
  return problem;
}

// Of the current device; a lookup, unlike Device::info().
int32_t device_attribute(cudaDeviceAttr attribute);

AttentionConfig config_of(const AttentionProblem& problem, int32_t max_queries);

// Takes the workspace for partial results.
AttentionTiling tiling_of(const AttentionProblem& problem, const AttentionConfig& config, ExecutionContext& context);

// Merges the ranges of rows that have several; after the kernel that computed them.
void merge_ranges(const AttentionProblem& problem, const RangePartials& partials, ExecutionContext& context);

// Starts a kernel of Traits whose shared memory is one Memory, and the merge of ranges where it leaves them apart.
template <typename Traits, typename Memory>
void launch_tiles(const char* name, void (*kernel)(AttentionProblem, AttentionTiling), const AttentionProblem& problem,
                  const AttentionConfig& config, ExecutionContext& context) {
  const AttentionTiling tiling = tiling_of(problem, config, context);
  const int32_t num_kv_heads = problem.num_heads / problem.group;
  launch(
      name, kernel,
      {.grid = dim3(static_cast<unsigned>(config.num_tiles), static_cast<unsigned>(num_kv_heads * config.head_blocks),
                    static_cast<unsigned>(config.num_ranges)),
       .block = dim3(Traits::kThreads),
       .shared_bytes = sizeof(Memory)},
      context, problem, tiling);
  if (config.num_ranges > 1) merge_ranges(problem, tiling.partials, context);
}

// The whole attention over a float32 cache.
void attend_float32(const AttentionProblem& problem, ExecutionContext& context);

// Paged attention over a 16-bit cache.
void attend_bfloat16(const AttentionProblem& problem, ExecutionContext& context);
void attend_float16(const AttentionProblem& problem, ExecutionContext& context);

}  // namespace eagle31rt::cuda
