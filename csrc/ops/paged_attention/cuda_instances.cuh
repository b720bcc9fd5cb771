// Chooses the kernel of a head_dim and a tile size, for one element type; a file per type so that they compile in
// parallel.
#pragma once

#include "ops/paged_attention/cuda_launch.h"
#include "ops/paged_attention/cuda_tile.cuh"

namespace eagle31rt::cuda {

template <typename Element, int kDim, int kRowWarps, int kSplitWarps>
void attend_with(const AttentionProblem& problem, const AttentionConfig& config, ExecutionContext& context) {
  using Traits = TileTraits<Element, kDim, kRowWarps, kSplitWarps>;
  launch_tiles<Traits, TileMemory<Traits>>("paged_attention", attention_kernel<Traits>, problem, config, context);
}

template <typename Element, int kDim>
void attend_dim(const AttentionProblem& problem, ExecutionContext& context) {
  constexpr int kMaxQueries = kDim > 128 ? 32 : 64;
  const AttentionConfig config = config_of(problem, kMaxQueries);
  if (config.tile_queries == 16) {
    attend_with<Element, kDim, 1, (kDim % 64 == 0 ? 4 : 2)>(problem, config, context);
  } else if (config.tile_queries == 32) {
    attend_with<Element, kDim, 2, (kDim > 128 ? 4 : 2)>(problem, config, context);
  } else if constexpr (kMaxQueries == 64) {
    attend_with<Element, kDim, 4, 1>(problem, config, context);
  }
}

template <typename Element>
void attend_stored(const AttentionProblem& problem, ExecutionContext& context) {
  if (problem.key_dim <= 64) return attend_dim<Element, 64>(problem, context);
  if (problem.key_dim <= 96) return attend_dim<Element, 96>(problem, context);
  if (problem.key_dim <= 128) return attend_dim<Element, 128>(problem, context);
  attend_dim<Element, 256>(problem, context);
}

}  // namespace eagle31rt::cuda
