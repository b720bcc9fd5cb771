// AsyncEngine in Python. Every call that can block gives the GIL away.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <unordered_set>

#include "bindings/core.h"
#include "eagle31rt/async_engine.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

// Threads that still run when the interpreter is taken down would need a GIL that is gone. Guarded by the GIL.
std::unordered_set<AsyncEngine*>& live_engines() {
  static std::unordered_set<AsyncEngine*> engines;
  return engines;
}

// The engine's thread may need the GIL to end, so nobody may wait for it with the GIL.
struct DeleteWithoutGil {
  void operator()(AsyncEngine* engine) const {
    live_engines().erase(engine);
    const py::gil_scoped_release release;
    delete engine;
  }
};
using AsyncEnginePointer = std::unique_ptr<AsyncEngine, DeleteWithoutGil>;

void shut_down_all() {
  const std::unordered_set<AsyncEngine*> engines = live_engines();
  for (AsyncEngine* engine : engines) {
    const py::gil_scoped_release release;
    engine->shutdown();
  }
}

AsyncEnginePointer open(const EngineConfig& config, const TokenTable* table) {
  AsyncEnginePointer async = [&] {
    const py::gil_scoped_release release;
    Engine engine(config);
    if (table != nullptr) engine.set_token_table(*table);
    return AsyncEnginePointer(new AsyncEngine(std::move(engine)));
  }();
  live_engines().insert(async.get());
  return async;
}

void submit(AsyncEngine& engine, int64_t request_id, const std::vector<int32_t>& prompt, const SamplingParams& params,
            const RequestOptions& options) {
  const py::gil_scoped_release release;
  engine.submit(request_id, prompt, params, options);
}

void run_between_steps(AsyncEngine& async, const py::function& function) {
  const std::function<void(Engine&)> call = [&](Engine& engine) {
    const py::gil_scoped_acquire acquire;
    function(py::cast(&engine, py::return_value_policy::reference));
  };
  const py::gil_scoped_release release;
  async.run_between_steps(call);
}

template <typename Value>
Value without_gil(const AsyncEngine& engine, Value (AsyncEngine::*method)() const) {
  const py::gil_scoped_release release;
  return (engine.*method)();
}

}  // namespace

void bind_async_engine(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<AsyncEngine, AsyncEnginePointer>(module, "AsyncEngine")
      .def(py::init(&open), py::arg("config"), py::arg("token_table") = nullptr)
      .def("submit", &submit, py::arg("request_id"), py::arg("prompt_token_ids"), py::arg("params"),
           py::arg("options") = RequestOptions{})
      .def("cancel", &AsyncEngine::cancel, py::arg("request_id"), release)
      .def("wait_outputs", &AsyncEngine::wait_outputs, py::arg("timeout_seconds"), release)
      .def_property_readonly(
          "info", [](const AsyncEngine& engine) { return info_dict(without_gil(engine, &AsyncEngine::info)); })
      .def_property_readonly(
          "stats", [](const AsyncEngine& engine) { return stats_dict(without_gil(engine, &AsyncEngine::stats)); })
      .def_property_readonly("is_running",
                             [](const AsyncEngine& engine) { return without_gil(engine, &AsyncEngine::is_running); })
      .def("run_between_steps", &run_between_steps, py::arg("function"))
      .def("shutdown", &AsyncEngine::shutdown, release);
  py::module_::import("atexit").attr("register")(py::cpp_function(&shut_down_all));
}

}  // namespace eagle31rt
