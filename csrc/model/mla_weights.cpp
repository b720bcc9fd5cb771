#include "model/mla_weights.h"

#include <memory>
#include <utility>

#include "model/stored_matrix.h"

namespace eagle31rt {
namespace {

// kv_b_proj is [num_heads * (nope + v), latent]: of every head its key rows, then its value rows. A key row multiplies
// the latent on its way to one key element; absorbed into the query it is a column.
void add_up_projections(WeightLoader& loader, MlaWeights& weights, const MlaConfig& config, int64_t num_heads,
                        const std::string& name) {
  const int64_t nope = config.qk_nope_head_dim, value = config.v_head_dim, latent = config.kv_lora_rank;
  const std::shared_ptr<const StoredMatrix> matrix = loader.matrix(name, num_heads * (nope + value), latent);
  const auto add = [&](PackedWeight& weight, int64_t rows, const MatrixPart::Layout& layout) {
    loader.add_matrix(weight, {{name, rows, std::make_shared<MatrixPart>(matrix, layout)}}, layout.columns);
  };
  weights.key_up.resize(static_cast<size_t>(num_heads));
  weights.value_up.resize(static_cast<size_t>(num_heads));
  for (int64_t head = 0; head < num_heads; ++head) {
    const int64_t first = head * (nope + value);
    add(weights.key_up[static_cast<size_t>(head)], latent, {first, nope, /*transposed=*/true});
    add(weights.value_up[static_cast<size_t>(head)], value, {first + nope, latent});
  }
}

}  // namespace

void add_mla(WeightLoader& loader, LayerWeights& layer, const MlaConfig& config, const LayerTensors& shape,
             const std::string& prefix) {
  const std::string attention = prefix + "self_attn.";
  MlaWeights& weights = layer.mla.emplace();
  const int64_t query = shape.num_heads * config.query_dim();
  const TensorPart latent{attention + "kv_a_proj_with_mqa.weight", config.entry_dim()};
  if (config.q_lora_rank > 0) {
    loader.add_matrix(layer.qkv, {{attention + "q_a_proj.weight", config.q_lora_rank}, latent}, shape.attention_width);
    loader.add_matrix(weights.query_up, {{attention + "q_b_proj.weight", query}}, config.q_lora_rank);
    loader.add_vector(weights.query_norm, {{attention + "q_a_layernorm.weight", config.q_lora_rank}});
  } else {
    loader.add_matrix(layer.qkv, {latent}, shape.attention_width);
    loader.add_matrix(weights.query_up, {{attention + "q_proj.weight", query}}, shape.attention_width);
  }
  loader.add_vector(weights.latent_norm, {{attention + "kv_a_layernorm.weight", config.kv_lora_rank}});
  add_up_projections(loader, weights, config, shape.num_heads, attention + "kv_b_proj.weight");
  loader.add_matrix(layer.output, {{attention + "o_proj.weight", shape.hidden}}, shape.num_heads * config.v_head_dim);
}

int64_t MlaWeights::num_bytes() const {
  int64_t bytes = query_up.num_bytes() + vector_bytes(query_norm) + vector_bytes(latent_norm);
  for (const auto* heads : {&key_up, &value_up}) {
    for (const PackedWeight& weight : *heads) bytes += weight.num_bytes();
  }
  return bytes;
}

}  // namespace eagle31rt
