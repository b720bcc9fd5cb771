// Text of token runs and the commit routine, for tests/test_engine_text.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/testing.h"
#include "engine/commit.h"
#include "engine/text/request_text.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

// Text that each piece completes, and what the end adds.
std::vector<std::string> decode_utf8(const std::vector<std::string>& pieces) {
  Utf8Decoder decoder;
  std::vector<std::string> texts;
  for (const std::string& piece : pieces) decoder.add(piece, texts.emplace_back());
  decoder.finish(texts.emplace_back());
  return texts;
}

// One output for each run that is committed before the request ends; all tokens of a run but the last count as drafts.
std::vector<StepOutput> commit_runs(const TokenTable& table, const SamplingParams& params,
                                    const std::vector<int32_t>& eos_token_ids,
                                    const std::vector<std::vector<int32_t>>& runs) {
  RequestState request;
  request.tokens = {0};
  request.prompt_length = 1;
  request.length_limit = request.prompt_length + params.max_tokens;
  request.params = params;
  request.end_token_ids = params.stop_token_ids;
  if (!params.ignore_eos) {
    request.end_token_ids.insert(request.end_token_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  check_token_table(table);
  request.text = std::make_unique<RequestText>(std::make_shared<const TokenTable>(table), params);
  size_t longest = 1;
  for (const auto& run : runs) longest = std::max(longest, run.size());
  request.metrics.num_accepted_tokens_per_position.assign(longest, 0);
  std::vector<StepOutput> outputs;
  for (const auto& run : runs) {
    if (request.finished()) break;
    commit_run(request, run, static_cast<int32_t>(run.size()) - 1, outputs.emplace_back());
  }
  return outputs;
}

}  // namespace

void bind_testing_text(py::module_& module) {
  module.def("is_valid_utf8", [](const std::string& text) { return is_valid_utf8(text); });
  module.def("decode_utf8", &decode_utf8, py::arg("pieces"));
  module.def("commit_runs", &commit_runs, py::arg("table"), py::arg("params"), py::arg("eos_token_ids"),
             py::arg("runs"));
}

}  // namespace eagle31rt
