// Which target states an EAGLE-3 draft reads. The same key carries two numberings (eagle31_spec 1.1): speculators and
// vLLM write k, the number of layers that have run; SpecForge, TorchSpec and ModelOpt write the 0-based layer whose
// output it is, k - 1. A wrong guess only costs acceptance, silently; so nothing is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace eagle31rt {

constexpr int32_t kMaxCaptured = 8;

struct CaptureRequest {
  std::optional<std::vector<int32_t>> ids;  // as the file writes them
  std::optional<int32_t> count;             // num_aux_hidden_states
  bool speculators = false;                 // the file has speculators_model_type
};

struct CaptureLayers {
  std::vector<int32_t> layers;  // canonical k, strictly ascending
  std::string rule;             // which rule decided
};

// num_layers: of the target. Throws Error(kCheckpoint) for ids that are unsorted, repeated, out of range or ambiguous,
// or absent where there is no default; Error(kInvalidArgument) for wrong overrides.
CaptureLayers resolve_capture_layers(const CaptureRequest& request, int32_t num_layers, const DraftOverrides& overrides,
                                     const std::string& source);

}  // namespace eagle31rt
