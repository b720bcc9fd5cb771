// The speculation controller and its estimates, for tests/test_controller*.py and bench/controller_sim.py.
#include <pybind11/stl.h>

#include <tuple>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "spec/controller.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

using Requests = std::vector<std::tuple<int64_t, int32_t, int64_t>>;  // id, max_drafts, context
using Outcomes = std::vector<std::tuple<int64_t, int32_t, int32_t>>;  // id, num_drafts, num_accepted

const SpeculationChoice& choose(SpeculationController& controller, const Requests& requests) {
  std::vector<ControllerRequest> converted;
  for (const auto& [id, max_drafts, context] : requests) converted.push_back({id, max_drafts, context});
  return controller.choose(converted);
}

void observe(SpeculationController& controller, const Outcomes& outcomes, double draft_seconds, double observe_seconds,
             double target_seconds, bool has_prompts) {
  std::vector<RoundOutcome> converted;
  for (const auto& [id, num_drafts, num_accepted] : outcomes) converted.push_back({id, num_drafts, num_accepted});
  controller.observe(converted, {.draft_seconds = draft_seconds,
                                 .observe_seconds = observe_seconds,
                                 .target_seconds = target_seconds,
                                 .has_prompts = has_prompts});
}

void bind_cost_table(py::module_& module) {
  py::class_<CostCurve>(module, "CostCurve")
      .def("empty", &CostCurve::empty)
      .def("seconds", &CostCurve::seconds, py::arg("num_rows"))
      .def("deviation", &CostCurve::deviation, py::arg("num_rows"));
  py::class_<CostTable>(module, "CostTable")
      .def(py::init<double>(), py::arg("least_slope"))
      .def("add", &CostTable::add, py::arg("num_rows"), py::arg("context"), py::arg("seconds"), py::arg("now"),
           py::arg("curve"))
      .def("curve", &CostTable::curve, py::arg("context"), py::arg("now"), py::arg("other") = nullptr)
      .def("num_samples", &CostTable::num_samples, py::arg("num_rows"), py::arg("context"))
      .def_static("rows_of_knot", &CostTable::rows_of_knot, py::arg("knot"))
      .def_static("nearest_knot", &CostTable::nearest_knot, py::arg("num_rows"))
      .def_static("context_bucket", &CostTable::context_bucket, py::arg("context"))
      .def_property_readonly_static("NUM_KNOTS", [](const py::object&) { return CostTable::kNumKnots; });
}

}  // namespace

void bind_testing_controller(py::module_& module) {
  bind_cost_table(module);
  py::class_<SpeculationChoice>(module, "SpeculationChoice")
      .def_property_readonly("reason",
                             [](const SpeculationChoice& choice) { return choice_reason_name(choice.reason); })
      .def_readonly("num_drafts", &SpeculationChoice::num_drafts)
      .def_readonly("num_draft_steps", &SpeculationChoice::num_draft_steps)
      .def_readonly("num_draft_rows", &SpeculationChoice::num_draft_rows)
      .def_readonly("expected_tokens", &SpeculationChoice::expected_tokens)
      .def_readonly("expected_seconds", &SpeculationChoice::expected_seconds)
      .def_readonly("plain_seconds", &SpeculationChoice::plain_seconds);
  py::class_<SpeculationController>(module, "SpeculationController")
      .def(py::init<int32_t, bool>(), py::arg("max_drafts"), py::arg("equal_lengths") = false)
      .def("choose", choose, py::arg("requests"))
      .def("observe", observe, py::arg("outcomes"), py::arg("draft_seconds"), py::arg("observe_seconds"),
           py::arg("target_seconds"), py::arg("has_prompts") = false)
      .def("forget", &SpeculationController::forget, py::arg("request_id"))
      .def("forget_acceptance", &SpeculationController::forget_acceptance)
      .def("probe_seconds_left", &SpeculationController::probe_seconds_left)
      .def("rates", &SpeculationController::rates, py::arg("request_id"));
}

}  // namespace eagle31rt
