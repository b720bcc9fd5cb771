// Which layers of a target see a window of positions only, in the spellings of the families.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/json_reader.h"

namespace eagle31rt {

// The window of each layer, 0: none. "layer_types" decides where it is present, otherwise `windowed` (layer from 0);
// "sliding_window" is the size. Throws Error(kCheckpoint) for a list of another length, or a layer with a window where
// use_sliding_window is false or there is no size; Error(kUnsupported) for other types of layers.
std::vector<int32_t> parse_sliding_windows(const JsonReader& config, int32_t num_layers,
                                           const std::function<bool(int32_t)>& windowed);

}  // namespace eagle31rt
