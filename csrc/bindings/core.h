// Pieces of the module eagle31rt._core that have files of their own, and conversions that they share.
#pragma once

#include <pybind11/pybind11.h>

#include "eagle31rt/engine.h"

namespace eagle31rt {

pybind11::dict info_dict(const EngineInfo& info);
pybind11::dict stats_dict(const EngineStats& stats);

void bind_async_engine(pybind11::module_& module);
void bind_doctor(pybind11::module_& module);
void bind_memory_plan(pybind11::module_& module);

}  // namespace eagle31rt
