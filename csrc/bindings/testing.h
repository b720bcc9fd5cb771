// Pieces of the module eagle31rt._testing: internals that the tests drive directly. One file per area.
#pragma once

#include <pybind11/pybind11.h>

namespace eagle31rt {

void bind_testing_ops(pybind11::module_& module);
void bind_testing_bytes(pybind11::module_& module);
void bind_testing_device(pybind11::module_& module);
void bind_testing_gpu_bench(pybind11::module_& module);
void bind_testing_linear(pybind11::module_& module);
void bind_testing_cuda_linear(pybind11::module_& module);
void bind_testing_logits(pybind11::module_& module);
void bind_testing_machine(pybind11::module_& module);
void bind_testing_sampling(pybind11::module_& module);
void bind_testing_tree(pybind11::module_& module);
void bind_testing_controller(pybind11::module_& module);
void bind_testing_model(pybind11::module_& module);
void bind_testing_moe(pybind11::module_& module);
void bind_testing_agreement(pybind11::module_& module);
void bind_testing_engine(pybind11::module_& module);
void bind_testing_text(pybind11::module_& module);
void bind_testing_fake_device(pybind11::module_& module);

}  // namespace eagle31rt
