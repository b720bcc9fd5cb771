// The router of a mixture of experts with arrays, for tests/test_op_moe.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// Chosen ids and weights [rows, top_k] of logits [rows, num_experts].
py::tuple run_moe_route(const std::string& place_name, const Array<float>& logits, int32_t top_k, bool sigmoid,
                        bool normalise, float scale, const std::optional<Array<float>>& correction, int32_t num_groups,
                        int32_t num_groups_chosen) {
  const Place place(place_name);
  const std::pmr::vector<float> inputs = device_copy(logits);
  const std::pmr::vector<float> corrections = correction ? device_copy(*correction) : std::pmr::vector<float>{};
  const auto num_experts = static_cast<int32_t>(logits.shape(1));
  const size_t num_assignments = static_cast<size_t>(logits.shape(0)) * static_cast<size_t>(top_k);
  std::pmr::vector<int32_t> ids(num_assignments), sorted_rows(num_assignments), places(num_assignments);
  std::pmr::vector<int32_t> expert_begin(static_cast<size_t>(num_experts) + 1);
  std::pmr::vector<float> weights(num_assignments);
  MoeRouteParams params{};
  params.logits = inputs.data();
  params.correction = correction ? corrections.data() : nullptr;
  params.expert_ids = ids.data();
  params.weights = weights.data();
  params.expert_begin = expert_begin.data();
  params.sorted_rows = sorted_rows.data();
  params.places = places.data();
  params.num_rows = logits.shape(0);
  params.num_experts = num_experts;
  params.top_k = top_k;
  params.num_groups = num_groups;
  params.num_groups_chosen = num_groups_chosen;
  params.scoring = sigmoid ? MoeScoring::kSigmoid : MoeScoring::kSoftmax;
  params.normalise = normalise;
  params.scale = scale;
  place.run(1, &Ops::moe_route, reference::moe_route, params);
  const std::vector<py::ssize_t> shape = {logits.shape(0), top_k};
  return py::make_tuple(host_copy(ids, shape), host_copy(weights, shape));
}

}  // namespace

void bind_testing_moe(py::module_& module) {
  module.def("moe_route", run_moe_route, py::arg("place"), py::arg("logits"), py::arg("top_k"), py::kw_only(),
             py::arg("sigmoid") = false, py::arg("normalise") = false, py::arg("scale") = 1.0f,
             py::arg("correction") = py::none(), py::arg("num_groups") = 1, py::arg("num_groups_chosen") = 1);
}

}  // namespace eagle31rt
