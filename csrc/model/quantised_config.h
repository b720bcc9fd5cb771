// quantization_config of config.json: how a checkpoint stores its quantised matrices.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/json_reader.h"

namespace eagle31rt {

// nullopt without the key. Throws Error(kUnsupported) for a method or an option that is not read, naming the key, the
// value and what to do.
std::optional<QuantisedFormat> parse_quantised_format(const JsonReader& config);

// For a family with a form of its own: the method must be `wanted`.
void require_quantisation_method(const JsonReader& quantisation, const char* wanted);

}  // namespace eagle31rt
