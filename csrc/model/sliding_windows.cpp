#include "model/sliding_windows.h"

#include "base/check.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxLayerTypes = 1024;

bool is_windowed_type(const JsonReader& config, const std::string& type) {
  E31_CHECK(type == "full_attention" || type == "sliding_attention", kUnsupported, config.source(), ": ",
            config.name("layer_types"), " holds ", quote(type),
            "; only full_attention and sliding_attention are supported");
  return type == "sliding_attention";
}

}  // namespace

std::vector<int32_t> parse_sliding_windows(const JsonReader& config, int32_t num_layers,
                                           const std::function<bool(int32_t)>& windowed) {
  const auto types = config.texts("layer_types", kMaxLayerTypes);
  E31_CHECK(!types || types->size() == static_cast<size_t>(num_layers), kCheckpoint, config.source(), ": ",
            config.name("layer_types"), " has ", types ? types->size() : 0, " entries for ", num_layers, " layers");
  std::vector<int32_t> windows;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const bool own = types ? is_windowed_type(config, (*types)[static_cast<size_t>(layer)]) : windowed(layer);
    E31_CHECK(!own || config.boolean_or("use_sliding_window", true), kCheckpoint, config.source(), ": ",
              config.name("layer_types"), " has layers of sliding_attention, but ", config.name("use_sliding_window"),
              " is false");
    windows.push_back(own ? config.integer("sliding_window", 1, INT32_MAX) : 0);
  }
  return windows;
}

}  // namespace eagle31rt
