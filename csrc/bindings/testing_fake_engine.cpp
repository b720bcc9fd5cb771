// Engines over the fake device, and what only tests do to an engine.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_fake_device.h"
#include "eagle31rt/async_engine.h"
#include "engine/engine_impl.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

#define E31_FAKE_OPERATOR(op, Params)                                                   \
  void fake_##op(const Params& params, ExecutionContext& context) {                     \
    auto& device = static_cast<FakeDevice&>(*context.device);                           \
    device.launch_operator(#op, [params, &context] { cpu_ops().op(params, context); }); \
  }
E31_FOR_EACH_OP(E31_FAKE_OPERATOR)
#undef E31_FAKE_OPERATOR

#define E31_ENTRY(op, Params) .op = fake_##op,
const Ops kFakeOps = {.name = "fake", E31_FOR_EACH_OP(E31_ENTRY)};
#undef E31_ENTRY

Fault parse_fault(const std::string& name) {
  if (name == "launch") return Fault::kLaunch;
  if (name == "run") return Fault::kRun;
  fail(ErrorCode::kInvalidArgument, "fault is \"", name, "\"; give launch or run");
}

// Publishes the pages side by side at the beginning of a sequence: where the wanted one is found, -1 for nowhere.
int32_t find_page(const std::vector<std::vector<int32_t>>& published, const std::vector<int32_t>& wanted) {
  PrefixCache cache(static_cast<int64_t>(published.size()), static_cast<int32_t>(wanted.size()));
  for (size_t page = 0; page < published.size(); ++page) {
    cache.publish(static_cast<int32_t>(page), PrefixCache::kNone, published[page], /*draft_valid=*/true);
  }
  return cache.find(PrefixCache::kNone, wanted);
}

}  // namespace

void bind_testing_fake_device(py::module_& module) {
  py::class_<FakeDevice, std::unique_ptr<FakeDevice>>(module, "FakeDevice")
      .def(py::init<>())
      .def(
          "fail_after",
          [](FakeDevice& device, int64_t count, const std::string& fault, bool loses_device) {
            device.fail_after(count, parse_fault(fault), loses_device);
          },
          py::arg("count"), py::arg("fault"), py::arg("loses_device") = false)
      .def_readonly("num_operators", &FakeDevice::num_operators)
      .def_readonly("num_synchronizations", &FakeDevice::num_synchronizations)
      .def_readonly("num_graphs", &FakeDevice::num_graphs)
      .def_readonly("num_graph_launches", &FakeDevice::num_graph_launches)
      .def_readonly("num_copies_to_host", &FakeDevice::num_copies_to_host)
      .def_readonly("bytes_to_host", &FakeDevice::bytes_to_host);
  module.def(
      "engine_on_fake_device",
      [](const EngineConfig& config, FakeDevice& device) {
        return EngineAccess::make(config, {nullptr, &device, &kFakeOps});
      },
      py::arg("config"), py::arg("device"), py::keep_alive<0, 2>());
  module.def(
      "async_engine_on_fake_device",
      [](const EngineConfig& config, FakeDevice& device) {
        return new AsyncEngine(EngineAccess::make(config, {nullptr, &device, &kFakeOps}));
      },
      py::arg("config"), py::arg("device"), py::keep_alive<0, 2>(), py::return_value_policy::take_ownership);
  module.def("find_page", &find_page, py::arg("published"), py::arg("wanted"));
  module.def("preempt", &EngineAccess::preempt, py::arg("engine"), py::arg("request_id"));
  module.def("limit_drafts", &EngineAccess::limit_drafts, py::arg("engine"), py::arg("request_id"),
             py::arg("max_drafts"));
}

}  // namespace eagle31rt
