#include "model/memory_plan.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "model/kv_storage.h"
#include "model/weights.h"

namespace eagle31rt {
namespace {

constexpr int64_t kFloatBytes = static_cast<int64_t>(sizeof(float));

// What a tensor is, told by its canonical name. The first entry whose part the name contains wins.
struct Kind {
  std::string_view part;
  const char* kind;
  WeightShare share;
};

constexpr Kind kKinds[] = {
    {"norm", "norms", WeightShare::kWhole},
    {"embed_tokens.", "embedding", WeightShare::kDivided},
    {"lm_head.", "head", WeightShare::kDivided},
    {"self_attn.k_proj.", "attention", WeightShare::kKvHeads},
    {"self_attn.v_proj.", "attention", WeightShare::kKvHeads},
    {"self_attn.q_a_proj.", "attention", WeightShare::kWhole},
    {"self_attn.kv_a_proj_with_mqa.", "attention", WeightShare::kWhole},
    {"self_attn.o_proj.bias", "attention", WeightShare::kWhole},
    {"self_attn.", "attention", WeightShare::kDivided},
    {"mlp.experts.down_proj_bias", "routed_experts", WeightShare::kWhole},
    {"mlp.experts.", "routed_experts", WeightShare::kDivided},
    {"mlp.shared_experts.", "shared_experts", WeightShare::kDivided},
    {"mlp.gate.", "router", WeightShare::kWhole},
    {"mlp.router.", "router", WeightShare::kWhole},
    {"mlp.down_proj.bias", "mlp", WeightShare::kWhole},
    {"mlp.", "mlp", WeightShare::kDivided},
    {"fc.", "fusion", WeightShare::kWhole},
    {"d2t", "vocabulary_map", WeightShare::kWhole},
};

void add(WeightInventory& inventory, const std::string& name, int64_t num_bytes) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const Kind& kind) { return name.find(kind.part) != name.npos; });
  E31_CHECK(found != std::end(kKinds), kInternal, "no kind of weight is known for ", name);
  inventory.bytes[{found->kind, found->share}] += num_bytes;
}

std::map<std::string, int64_t> device_bytes(const WeightInventory& inventory, int32_t tensor_parallel_size,
                                            int32_t num_kv_heads) {
  std::map<std::string, int64_t> result;
  for (const auto& [key, num_bytes] : inventory.bytes) {
    const auto& [kind, share] = key;
    int64_t parts = share == WeightShare::kWhole ? 1 : tensor_parallel_size;
    if (share == WeightShare::kKvHeads) parts = std::min<int64_t>(parts, num_kv_heads);
    result[kind] += num_bytes / parts;
  }
  return result;
}

// num_kv_heads of a device, after checking that all sizes can be divided.
int32_t divided_kv_heads(const PlanShape& shape, int32_t num_kv_heads, const std::map<std::string, int64_t>& sizes) {
  const int32_t size = shape.tensor_parallel_size;
  for (const auto& [name, value] : sizes) {
    E31_CHECK(value % size == 0, kInvalidArgument, "tensor_parallel_size is ", size, ", which does not divide ", name,
              " (", value, ")");
  }
  E31_CHECK(num_kv_heads % size == 0 || size % num_kv_heads == 0, kInvalidArgument, "tensor_parallel_size is ", size,
            ", which neither divides num_key_value_heads (", num_kv_heads, ") nor is a multiple of it");
  return std::max(1, num_kv_heads / size);
}

int64_t kv_bytes(int32_t num_layers, int32_t num_kv_heads, int32_t head_dim, const std::optional<MlaConfig>& mla,
                 DType dtype) {
  KvShape kv{num_layers, num_kv_heads, head_dim, dtype};
  if (mla) {
    kv.latent_dim = mla->kv_lora_rank;
    kv.rope_dim = mla->qk_rope_head_dim;
  }
  return kv.bytes_per_token();
}

// Floats of a row in what LayerScratch, MlaScratch and MoeScratch hold; sizes are those of a device.
int64_t attention_floats(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                         const std::optional<MlaConfig>& mla) {
  if (!mla) return (num_heads + 2 * num_kv_heads) * head_dim + num_heads * head_dim;
  return mla->q_lora_rank + mla->entry_dim() +
         num_heads * (mla->query_dim() + mla->entry_dim() + mla->kv_lora_rank + mla->v_head_dim);
}

int64_t expert_floats(const MoeConfig& moe, int64_t hidden_size, int32_t tensor_parallel_size) {
  const int64_t width = moe.moe_intermediate_size / tensor_parallel_size;
  // an assignment's weight, three ids and its rows of gate, up, the product and the output
  return moe.num_experts + moe.num_experts_per_token * (4 + 3 * width + hidden_size);
}

}  // namespace

int64_t ModelPlan::weight_bytes() const {
  int64_t total = 0;
  for (const auto& [kind, num_bytes] : weights) total += num_bytes;
  return total;
}

WeightInventory decoder_inventory(const Checkpoint& checkpoint, const DecoderConfig& config, DType dtype) {
  WeightInventory inventory;
  inventory.file_bytes = check_decoder_weights(
      checkpoint, config, [&](const WeightPart& part) { add(inventory, part.name, part.num_bytes(dtype)); });
  return inventory;
}

WeightInventory draft_inventory(const Checkpoint& checkpoint, DType dtype) {
  WeightInventory inventory;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const std::string& name = entry.name;
    inventory.file_bytes += entry.num_bytes;
    if (name.ends_with("t2d")) continue;  // checked, not kept
    const bool is_map = name.ends_with("d2t");
    const int64_t element_bytes = entry.shape.size() == 2 ? dtype_size(dtype) : kFloatBytes;
    add(inventory, name, entry.num_elements() * (is_map ? dtype_size(DType::kInt32) : element_bytes));
  }
  return inventory;
}

ModelPlan plan_decoder(const WeightInventory& inventory, const DecoderConfig& config, const PlanShape& shape) {
  const int32_t size = shape.tensor_parallel_size;
  std::map<std::string, int64_t> sizes = {{"num_attention_heads", config.num_heads}, {"vocab_size", config.vocab_size}};
  int64_t mlp_width = config.intermediate_size;
  if (config.moe) {
    sizes["the width of an expert"] = config.moe->moe_intermediate_size;
    const int64_t shared = int64_t{config.moe->num_shared_experts} * config.moe->moe_intermediate_size;
    mlp_width = config.moe->num_dense_layers > 0 ? std::max(mlp_width, shared) : shared;
  }
  if (!config.moe || config.moe->num_dense_layers > 0) sizes["intermediate_size"] = config.intermediate_size;
  const int32_t kv_heads = divided_kv_heads(shape, config.num_kv_heads, sizes);

  ModelPlan plan;
  plan.weights = device_bytes(inventory, size, config.num_kv_heads);
  plan.kv_bytes_per_token = kv_bytes(config.num_layers, kv_heads, config.head_dim, config.mla, shape.kv_dtype);
  // the residual stream, the input of attention and that of the MLP
  int64_t floats = 3 * int64_t{config.hidden_size} + 3 * mlp_width / size +
                   attention_floats(config.num_heads / size, kv_heads, config.head_dim, config.mla);
  if (config.moe) floats += expert_floats(*config.moe, config.hidden_size, size);
  plan.activation_bytes = shape.num_rows * floats * kFloatBytes;
  return plan;
}

ModelPlan plan_draft(const WeightInventory& inventory, const DraftConfig& config, const PlanShape& shape) {
  const int32_t size = shape.tensor_parallel_size;
  const int32_t kv_heads = divided_kv_heads(shape, config.num_kv_heads,
                                            {{"num_attention_heads of the draft", config.num_heads},
                                             {"intermediate_size of the draft", config.intermediate_size},
                                             {"draft_vocab_size", config.draft_vocab_size}});
  ModelPlan plan;
  plan.weights = device_bytes(inventory, size, config.num_kv_heads);
  plan.kv_bytes_per_token = kv_bytes(config.num_layers, kv_heads, config.head_dim, config.mla, shape.kv_dtype);
  // captured states, the embedding, the doubled input of attention, two norms and the MLP
  const int64_t captured = static_cast<int64_t>(config.capture_layers.size()) * config.target_hidden_size;
  const int64_t floats = captured + 5 * int64_t{config.hidden_size} + 3 * int64_t{config.intermediate_size} / size +
                         attention_floats(config.num_heads / size, kv_heads, config.head_dim, config.mla);
  plan.activation_bytes = shape.num_rows * floats * kFloatBytes;
  return plan;
}

}  // namespace eagle31rt
