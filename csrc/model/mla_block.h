// Multi-head latent attention of one layer, absorbed in every pass, so that prefill, chunks, decode and verification
// compute a row alike:
//
//   query  = q_b(norm(q_a(input))) or q_proj(input); of each head: nope part, rope part (rotated)
//   entry  = norm(latent), rotated rope key, both from kv_a(input); this is what the cache holds
//   scores = concat(nope @ key_up[head], rope) . entry;  output[head] = value_up[head](sum of weights * latent)
#pragma once

#include <cstdint>

#include "device/execution_context.h"
#include "model/config.h"
#include "model/forward_batch.h"
#include "model/rope_table.h"
#include "model/scratch.h"
#include "model/weights.h"
#include "ops/mla_append/latent_cache_view.h"

namespace eagle31rt {

struct MlaScratch {
  explicit MlaScratch(Device& device) : compressed(device), query(device), absorbed(device), latents(device) {}
  void reserve(const MlaConfig& config, int32_t num_heads, int64_t num_rows);

  Scratch compressed, query, absorbed, latents;
};

// input [num_rows, attention input width] -> attended [num_rows, num_heads * v_head_dim], before the output projection.
void run_mla_block(const MlaConfig& config, int32_t num_heads, bool interleaved_rope, const LayerWeights& weights,
                   const BatchView& batch, const RopeRows& rope, const LatentCacheView& cache, const float* input,
                   float* attended, MlaScratch& scratch, ExecutionContext& context);

}  // namespace eagle31rt
