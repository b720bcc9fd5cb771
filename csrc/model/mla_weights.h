// The tensors of multi-head latent attention in one layer.
#pragma once

#include <string>

#include "model/config.h"
#include "model/weight_loader.h"

namespace eagle31rt {

// Plans the attention of the layer with the canonical prefix ("layers.3."), norms of its input excepted; `layer` must
// stay in place until the loader has run.
void add_mla(WeightLoader& loader, LayerWeights& layer, const MlaConfig& config, const LayerTensors& shape,
             const std::string& prefix);

}  // namespace eagle31rt
