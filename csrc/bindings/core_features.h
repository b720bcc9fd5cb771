// The part of the module eagle31rt._core that training uses.
#pragma once

#include <pybind11/pybind11.h>

namespace eagle31rt {

void bind_features(pybind11::module_& module);

}  // namespace eagle31rt
