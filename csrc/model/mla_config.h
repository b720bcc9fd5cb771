// The part of config.json that describes a multi-head latent attention.
#pragma once

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

// Both throw Error(kCheckpoint) for a broken file and Error(kUnsupported) for options that the graph does not have,
// each by key name.

// Everything but the scale. num_heads, num_kv_heads: which must be equal.
MlaConfig parse_latent_attention(const JsonReader& config, int32_t num_heads, int32_t num_kv_heads);
// The rotary embedding of the qk_rope_head_dim part, and with it mla.scale. max_position_embeddings: as of
// parse_rope_config().
RopeConfig parse_latent_rope(const JsonReader& config, int32_t max_position_embeddings, MlaConfig& mla);

}  // namespace eagle31rt
