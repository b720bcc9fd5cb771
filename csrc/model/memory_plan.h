// What a model takes on each of several devices that share it by tensor parallelism, told by configs and the headers of
// safetensors files: no weight is read, so that a model of a terabyte takes a second.
//
// Shares are those of vLLM. Heads, the width of MLPs and of each expert, and the vocabulary are divided; the router,
// norms, latent down-projections (q_a, kv_a) and the draft's fusion are on every device, and so is the latent KV cache.
// KV heads are divided down to one a device. Matrices count as they are kept, quantised ones with their codes and
// scales. Element counts are exact; a CPU's weights are filled up to 32 rows each.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "model/checkpoint.h"
#include "model/config.h"

namespace eagle31rt {

enum class WeightShare {
  kWhole,    // on every device
  kDivided,  // equally
  kKvHeads,  // down to one KV head a device
};

// The weights of a model, from headers.
struct WeightInventory {
  // Bytes by kind and share. Kinds: embedding, head, attention, mlp, shared_experts, routed_experts, router, norms,
  // fusion, vocabulary_map.
  std::map<std::pair<std::string, WeightShare>, int64_t> bytes;
  int64_t file_bytes = 0;  // of the tensors that are read, as they are stored
};

// dtype: of the matrices in memory; vectors are float32. The first throws what load_decoder_weights says of the
// headers.
WeightInventory decoder_inventory(const Checkpoint& checkpoint, const DecoderConfig& config, DType dtype);
WeightInventory draft_inventory(const Checkpoint& checkpoint, DType dtype);

struct PlanShape {
  int32_t tensor_parallel_size = 1;
  DType kv_dtype = DType::kBFloat16;
  int64_t num_rows = 0;  // of the largest pass
};

// Bytes of one device.
struct ModelPlan {
  std::map<std::string, int64_t> weights;  // by kind, those that there are
  int64_t kv_bytes_per_token = 0;          // of all layers
  int64_t activation_bytes = 0;            // float32 rows of the largest pass

  int64_t weight_bytes() const;
};

// Both throw Error(kInvalidArgument) for a size that tensor_parallel_size does not divide.
ModelPlan plan_decoder(const WeightInventory& inventory, const DecoderConfig& config, const PlanShape& shape);
ModelPlan plan_draft(const WeightInventory& inventory, const DraftConfig& config, const PlanShape& shape);

}  // namespace eagle31rt
