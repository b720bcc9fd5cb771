#pragma once

#include <pybind11/pybind11.h>

namespace eagle31rt {

// SamplingParams and TokenLogprobs.
void bind_sampling_params(pybind11::module_& module);

}  // namespace eagle31rt
