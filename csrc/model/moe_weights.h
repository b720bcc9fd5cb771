// The tensors of the routed experts of one layer.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/weight_loader.h"

namespace eagle31rt {

// Plans router and experts of the layer with the canonical prefix ("layers.3."); `weights` must stay in place until the
// loader has run. The shared experts are not part of it: their MLP is loaded like a plain one.
void add_moe(WeightLoader& loader, MoeWeights& weights, const MoeConfig& config, int64_t hidden_size,
             const std::string& prefix);

}  // namespace eagle31rt
