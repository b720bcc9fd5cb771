// What decoder and draft configs have in common: sizes, and the refusal of options that this version cannot run.
#pragma once

#include <span>

#include "model/config.h"
#include "model/json_reader.h"
#include "ops/sample/law.h"

namespace eagle31rt {

constexpr int64_t kMaxHiddenSize = 65536;
constexpr int64_t kMaxVocabSize = law::kMaxVocabSize;  // what the sampler's integers can hold: 2^20 - 1
constexpr int64_t kMaxPositionEmbeddings = int64_t{1} << 27;

// Sizes of one llama layer, bounded so that every product of two fits 64 bits with room.
struct LayerSizes {
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;  // a multiple of 8, at most 256; 0 with a latent attention, whose heads have several sizes
};

// kv_heads_default: whether a missing num_key_value_heads means num_attention_heads (llama) or is an error.
LayerSizes parse_layer_sizes(const JsonReader& config, bool kv_heads_default, bool latent_attention);

// understood: keys that the caller reads itself.
// Throws Error(kUnsupported) by key name: quantisation, mixture of experts, an active sliding window, softcapping,
// multipliers, qk norm, MLA, an activation other than silu.
void refuse_unsupported_options(const JsonReader& config, int32_t max_position_embeddings,
                                std::span<const char* const> understood = {});

// Parts of the above, for callers that report them apart.
void refuse_quantised(const JsonReader& config);
void refuse_sliding_window(const JsonReader& config, int32_t max_position_embeddings);

// The length to serve: max_model_len, or the target's own where that is 0. Throws Error(kInvalidArgument) for one that
// the target's positions do not allow.
constexpr int32_t kMinModelLen = 2;  // a prompt of one token and one more
int32_t serving_length(int32_t max_model_len, const DecoderConfig& target);

// "dtype" (transformers 5) or "torch_dtype".
DType parse_config_dtype(const JsonReader& config, DType fallback);

}  // namespace eagle31rt
