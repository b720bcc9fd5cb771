// The draft doctor for Python: findings as dicts, whose keys are those of `eagle31rt check --json`.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/core.h"
#include "bindings/error_translation.h"
#include "model/doctor.h"

namespace py = pybind11;

namespace eagle31rt {
namespace {

py::list rules_list() {
  py::list rules;
  for (const RuleInfo& info : draft_rules()) {
    rules.append(py::dict(py::arg("rule") = info.id, py::arg("check") = info.check, py::arg("fix") = info.fix));
  }
  return rules;
}

py::dict finding_dict(const Finding& finding) {
  const RuleInfo& info = rule_info(finding.rule);
  py::list options;
  for (const DraftOption& option : finding.options) {
    options.append(
        py::dict(py::arg("name") = option.name, py::arg("value") = option.value, py::arg("result") = option.result));
  }
  const bool refused = finding.code.has_value();
  py::dict result(py::arg("rule") = info.id, py::arg("status") = finding_status_name(finding.status),
                  py::arg("message") = finding.message, py::arg("options") = options);
  result["fix"] = refused || finding.status == FindingStatus::kNote ? info.fix : "";
  result["error"] = refused ? py::object(py::str(python_error_class(*finding.code))) : py::none();
  return result;
}

py::dict examine(const std::string& target, const std::string& draft, const std::vector<int32_t>& capture_layers,
                 const std::string& layer_id_convention, const std::string& feedback, int32_t max_model_len,
                 int32_t num_speculative_tokens) {
  DraftReport report;
  {
    const py::gil_scoped_release release;
    report = examine_draft(target, draft, {capture_layers, layer_id_convention, feedback}, max_model_len,
                           num_speculative_tokens);
  }
  py::list findings, resolved;
  for (const Finding& finding : report.findings) findings.append(finding_dict(finding));
  for (const ResolvedValue& value : report.resolved) {
    resolved.append(
        py::dict(py::arg("name") = value.name, py::arg("value") = value.value, py::arg("origin") = value.origin));
  }
  return py::dict(py::arg("loads") = report.loads, py::arg("findings") = findings, py::arg("resolved") = resolved);
}

}  // namespace

void bind_doctor(py::module_& module) {
  using py::literals::operator""_a;
  module.def("draft_rules", &rules_list);
  module.def("examine_draft", &examine, "target"_a, "draft"_a, "capture_layers"_a = std::vector<int32_t>(),
             "layer_id_convention"_a = "", "feedback"_a = "auto", "max_model_len"_a = 0,
             "num_speculative_tokens"_a = 0);
}

}  // namespace eagle31rt
