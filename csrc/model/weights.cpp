#include "model/weights.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "model/centred_norm.h"
#include "model/moe_weights.h"
#include "model/weight_loader.h"

namespace eagle31rt {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "embed_tokens.weight";

// "layers.61.mlp..." is of the layers for multi-token prediction, which follow the decoder's own.
bool is_next_token_layer(std::string_view name, const DecoderConfig& config) {
  constexpr std::string_view kLayers = "layers.";
  if (config.num_next_token_layers == 0 || !name.starts_with(kLayers)) return false;
  int32_t index = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kLayers.size(), end, index);
  return error == std::errc() && stop != end && *stop == '.' && index >= config.num_layers &&
         index < config.num_layers + config.num_next_token_layers;
}

std::string_view canonical_name(const std::string& name, const DecoderConfig& config) {
  const auto is_ignored = [&](const std::string& prefix) { return name.starts_with(prefix); };
  if (std::any_of(config.ignored_prefixes.begin(), config.ignored_prefixes.end(), is_ignored)) return "";
  // Old llama checkpoints store the rope frequencies, which config.json determines.
  if (name.ends_with("rotary_emb.inv_freq")) return "";
  std::string_view stripped = name;
  if (stripped.starts_with(config.tensor_prefix)) stripped.remove_prefix(config.tensor_prefix.size());
  stripped = strip_model_prefix(stripped);
  return is_next_token_layer(stripped, config) ? "" : stripped;
}

CanonicalNames decoder_names(const Checkpoint& checkpoint, const DecoderConfig& config) {
  return CanonicalNames(checkpoint,
                        [&](const std::string& name, std::string&) { return canonical_name(name, config); });
}

// A tied checkpoint may repeat its embedding as lm_head; a different one would be ignored silently.
void drop_tied_head(CanonicalNames& names) {
  const TensorEntry* head = names.find(kHead);
  const TensorEntry* embedding = names.find(kEmbedding);
  if (head == nullptr || embedding == nullptr) return;
  const bool equal = head->dtype_name == embedding->dtype_name && head->shape == embedding->shape &&
                     std::memcmp(head->data, embedding->data, static_cast<size_t>(head->num_bytes)) == 0;
  E31_CHECK(equal, kCheckpoint, names.checkpoint().directory(), ": tensor ", quote(head->name), " differs from ",
            quote(embedding->name),
            ", but config.json has tie_word_embeddings = true; set it to false or remove the tensor");
  names.checkpoint().release_pages(*head);
  names.checkpoint().release_pages(*embedding);
  names.erase(kHead);
}

LayerTensors layer_shape(const DecoderConfig& config) {
  return {.hidden = config.hidden_size,
          .intermediate = config.intermediate_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .attention_width = config.hidden_size,
          .qkv_bias = config.qkv_bias,
          .output_bias = config.output_bias,
          .mlp_bias = config.mlp_bias,
          .qk_norm = config.qk_norm,
          .sinks = config.attention_sinks,
          .sandwich_norms = config.sandwich_norms,
          .centred_norms = config.centred_norms,
          .mla = config.mla};
}

void add_decoder_layer(WeightLoader& loader, LayerWeights& layer, const DecoderConfig& config, size_t index) {
  const std::string prefix = concat("layers.", index, ".");
  LayerTensors shape = layer_shape(config);
  if (config.moe && static_cast<int64_t>(index) >= config.moe->num_dense_layers) {
    shape.intermediate = int64_t{config.moe->num_shared_experts} * config.moe->moe_intermediate_size;
    shape.mlp_prefix = "mlp.shared_experts.";
    add_moe(loader, layer.moe.emplace(), *config.moe, config.hidden_size, prefix);
  }
  add_layer(loader, layer, shape, prefix);
}

void add_decoder(WeightLoader& loader, const DecoderConfig& config, DecoderWeights& weights) {
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  loader.add_matrix(weights.embedding, {{kEmbedding, config.vocab_size}}, config.hidden_size, Storage::kDequantised);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    add_decoder_layer(loader, weights.layers[i], config, i);
  }
  loader.add_vector(weights.final_norm, {norm_part("norm.weight", config.hidden_size, config.centred_norms)});
  if (!config.tie_word_embeddings) loader.add_matrix(weights.head, {{kHead, config.vocab_size}}, config.hidden_size);
}

}  // namespace

int64_t WeightPart::num_bytes(DType dtype) const {
  if (!is_matrix) return rows * static_cast<int64_t>(sizeof(float));
  if (!form.is_quantised()) return rows * columns * dtype_size(dtype);
  return (rows * columns * form.code_bits() + 7) / 8 + rows * form.num_groups(columns) * form.scale_bytes();
}

int64_t DecoderWeights::num_bytes() const {
  int64_t bytes = embedding.num_bytes() + head.num_bytes() + vector_bytes(final_norm);
  for (const LayerWeights& layer : layers) bytes += layer_bytes(layer);
  return bytes;
}

DecoderWeights load_decoder_weights(const Checkpoint& checkpoint, const DecoderConfig& config, DType dtype,
                                    Device& device) {
  CanonicalNames names = decoder_names(checkpoint, config);
  if (config.tie_word_embeddings) drop_tied_head(names);
  DecoderWeights weights;
  weights.dtype = dtype;
  WeightLoader loader(names, dtype, device, config.quantised);
  add_decoder(loader, config, weights);
  loader.run();
  return weights;
}

int64_t check_decoder_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                              const std::function<void(const WeightPart&)>& visit) {
  CanonicalNames names = decoder_names(checkpoint, config);
  if (config.tie_word_embeddings) names.erase(kHead);  // compared with the embedding when it is loaded
  DecoderWeights weights;
  WeightLoader loader(names, config.dtype, cpu_device(), config.quantised);
  add_decoder(loader, config, weights);
  loader.check_shapes();
  loader.check_missing();
  loader.check_unused();
  if (visit) loader.for_each_part(visit);
  int64_t num_bytes = 0;
  for (const auto& [name, entry] : names.tensors()) num_bytes += entry->num_bytes;
  return num_bytes;
}

}  // namespace eagle31rt
