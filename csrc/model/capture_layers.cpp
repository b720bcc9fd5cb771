#include "model/capture_layers.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"

namespace eagle31rt {
namespace {

using Layers = std::vector<int32_t>;

std::string list_string(const Layers& layers) {
  std::string text = "[";
  for (size_t i = 0; i < layers.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(layers[i]);
  return text + "]";
}

bool strictly_ascending(const Layers& layers) {
  return std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
}

Layers plus_one(Layers layers) {
  for (int32_t& layer : layers) ++layer;
  return layers;
}

Layers default_layers(int32_t num_layers) { return {2, num_layers / 2, num_layers - 3}; }

// count, order and range of canonical layers
void check_layers(ErrorCode code, const Layers& layers, const Layers& written, int32_t num_layers,
                  const std::string& what) {
  if (layers.empty() || layers.size() > kMaxCaptured) {
    fail(code, what, " has ", layers.size(), " ids; 1 to ", kMaxCaptured, " are supported");
  }
  if (!strictly_ascending(layers)) {
    fail(code, what, " is ", list_string(written), "; ids must be strictly ascending, in the order of the fc columns");
  }
  if (layers.front() < 0 || layers.back() > num_layers) {
    fail(code, what, " is ", list_string(written), ", which captures the state after ",
         layers.front() < 0 ? layers.front() : layers.back(), " layers; the target has ", num_layers);
  }
}

CaptureLayers default_rule(const CaptureRequest& request, int32_t num_layers, const std::string& source) {
  const Layers layers = default_layers(num_layers);
  const char* how = "; write eagle_aux_hidden_state_layer_ids into its config or pass capture_layers";
  E31_CHECK(request.count.value_or(3) == 3, kCheckpoint, source, " has no layer ids for its ", *request.count,
            " captured states; the default exists for 3 only", how);
  E31_CHECK(strictly_ascending(layers), kCheckpoint, source, " has no layer ids, and the default ", list_string(layers),
            " needs a target of 7 or more layers, not ", num_layers, how);
  return {layers, "no ids: default"};
}

CaptureLayers ids_rule(const Layers& ids, const CaptureRequest& request, int32_t num_layers,
                       const std::string& convention, const std::string& source) {
  if (convention == "residual_index") return {ids, "convention override"};
  if (convention == "layer_output") return {plus_one(ids), "convention override"};
  if (request.speculators) return {ids, "speculators"};
  if (ids.back() == num_layers) return {ids, "id equal to the number of layers"};
  const Layers usual = default_layers(num_layers);
  if (strictly_ascending(usual)) {
    if (ids == usual) return {ids, "usual layers, residual index"};
    if (plus_one(ids) == usual) return {plus_one(ids), "usual layers, layer output"};
  }
  fail(ErrorCode::kCheckpoint, source, ": eagle_aux_hidden_state_layer_ids ", list_string(ids),
       " can mean the states after ", list_string(ids), " layers (numbering of vLLM and speculators) or after ",
       list_string(plus_one(ids)),
       " (SpecForge, TorchSpec, ModelOpt, SGLang), and the wrong reading would only lower acceptance; say which with "
       "layer_id_convention \"residual_index\" (the first) or \"layer_output\" (the second)");
}

}  // namespace

CaptureLayers resolve_capture_layers(const CaptureRequest& request, int32_t num_layers, const DraftOverrides& overrides,
                                     const std::string& source) {
  const std::string& convention = overrides.layer_id_convention;
  E31_CHECK(convention.empty() || convention == "residual_index" || convention == "layer_output", kInvalidArgument,
            "layer_id_convention is ", quote(convention), "; give \"residual_index\" or \"layer_output\"");
  CaptureLayers result;
  if (!overrides.capture_layers.empty()) {
    E31_CHECK(convention.empty(), kInvalidArgument,
              "capture_layers counts layers that have run; it takes no "
              "layer_id_convention, give one of the two");
    check_layers(ErrorCode::kInvalidArgument, overrides.capture_layers, overrides.capture_layers, num_layers,
                 "capture_layers");
    result = {overrides.capture_layers, "override"};
  } else if (!request.ids) {
    result = default_rule(request, num_layers, source);
  } else {
    const std::string what = source + ": eagle_aux_hidden_state_layer_ids";
    check_layers(ErrorCode::kCheckpoint, *request.ids, *request.ids, num_layers, what);
    result = ids_rule(*request.ids, request, num_layers, convention, source);
    check_layers(ErrorCode::kCheckpoint, result.layers, *request.ids, num_layers, what);
  }
  E31_CHECK(!request.count || *request.count == static_cast<int32_t>(result.layers.size()), kCheckpoint, source,
            ": num_aux_hidden_states is ", *request.count, ", but ", result.layers.size(), " layers are captured (",
            list_string(result.layers), ")");
  return result;
}

}  // namespace eagle31rt
