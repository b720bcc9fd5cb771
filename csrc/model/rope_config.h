// The rotary part of a config.json, in the spellings of transformers 4 (rope_theta + rope_scaling) and 5
// (rope_parameters).
#pragma once

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

// max_position_embeddings: what the file says, the fallback of original_max_position_embeddings as in transformers.
// default_theta: without a rope_theta.
RopeConfig parse_rope_config(const JsonReader& config, int32_t head_dim, int32_t max_position_embeddings,
                             double default_theta = 10000.0);
// One rope object by itself (transformers 5 writes one per type of layer).
RopeConfig parse_rope_object(const JsonReader& rope, int32_t head_dim, int32_t max_position_embeddings);

}  // namespace eagle31rt
