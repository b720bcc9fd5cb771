// process_logits and token_logprobs with arrays, for tests/test_ops_process_logits.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_rows.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// Rows as Python gives them: a list of dicts with the fields of ProcessRow by name and the lists themselves in place of
// their bounds.
struct ProcessBatch {
  std::pmr::vector<ProcessRow> rows;
  std::pmr::vector<TokenCount> history;
  std::pmr::vector<int32_t> path_ids, row_indices;
  std::pmr::vector<TokenBias> biases;
  std::pmr::vector<uint32_t> masks;

  explicit ProcessBatch(const std::vector<py::dict>& given) {
    for (const py::dict& row : given) add(row);
  }

  void add(const py::dict& given) {
    ProcessRow row = {.repetition_penalty = given["repetition_penalty"].cast<float>(),
                      .frequency_penalty = given["frequency_penalty"].cast<float>(),
                      .presence_penalty = given["presence_penalty"].cast<float>(),
                      .history_begin = size_of(history),
                      .history_end = 0,
                      .path_begin = size_of(path_ids),
                      .path_end = 0,
                      .bias_begin = size_of(biases),
                      .bias_end = 0,
                      .mask_begin = -1};
    using Count = std::tuple<int32_t, int32_t, int32_t>;
    for (const auto& [id, output, prompt] : given["history"].cast<std::vector<Count>>()) {
      history.push_back({id, output, prompt});
    }
    for (const int32_t id : given["path"].cast<std::vector<int32_t>>()) path_ids.push_back(id);
    using Bias = std::tuple<int32_t, float>;
    for (const auto& [id, bias] : given["biases"].cast<std::vector<Bias>>()) biases.push_back({id, bias});
    if (const auto words = given["mask"].cast<std::optional<std::vector<uint32_t>>>()) {
      row.mask_begin = size_of(masks);
      masks.insert(masks.end(), words->begin(), words->end());
    }
    row.history_end = size_of(history);
    row.path_end = size_of(path_ids);
    row.bias_end = size_of(biases);
    rows.push_back(row);
    row_indices.push_back(given["index"].cast<int32_t>());
  }

  template <typename T>
  static int32_t size_of(const std::pmr::vector<T>& list) {
    return static_cast<int32_t>(list.size());
  }
};

// Returns the logits [num_rows, stride] with the rules applied.
Array<float> run_process_logits(const std::string& instruction_set, const Array<float>& logits, int64_t vocab_size,
                                const std::vector<py::dict>& rows, int num_threads) {
  E31_CHECK(vocab_size >= 1 && vocab_size <= logits.shape(1), kInvalidArgument, "vocab_size is ", vocab_size);
  const Place place(instruction_set);
  std::pmr::vector<float> processed = device_copy(logits);
  const ProcessBatch batch(rows);
  const ProcessLogitsParams params = {.logits = processed.data(),
                                      .rows = batch.rows.data(),
                                      .history = batch.history.data(),
                                      .path_ids = batch.path_ids.data(),
                                      .biases = batch.biases.data(),
                                      .masks = batch.masks.data(),
                                      .row_indices = batch.row_indices.data(),
                                      .num_rows = static_cast<int64_t>(batch.rows.size()),
                                      .vocab_size = vocab_size,
                                      .logits_stride = logits.shape(1)};
  place.run(num_threads, &Ops::process_logits, reference::process_logits, params);
  return host_copy(processed, {logits.shape(0), logits.shape(1)});
}

// Returns (log-probabilities, ranks), each [num_rows].
py::tuple run_token_logprobs(const std::string& instruction_set, const Array<float>& logits, int64_t vocab_size,
                             const Array<int32_t>& token_ids, int num_threads) {
  E31_CHECK(vocab_size >= 1 && vocab_size <= logits.shape(1), kInvalidArgument, "vocab_size is ", vocab_size);
  E31_CHECK(token_ids.size() == logits.shape(0), kInvalidArgument, "token_ids has ", token_ids.size(), " entries");
  const Place place(instruction_set);
  const std::pmr::vector<float> rows = device_copy(logits);
  const std::pmr::vector<int32_t> ids = device_copy(token_ids);
  std::pmr::vector<float> logprobs(ids.size());
  std::pmr::vector<int32_t> ranks(ids.size());
  const TokenLogprobsParams params = {.logits = rows.data(),
                                      .token_ids = ids.data(),
                                      .logprobs = logprobs.data(),
                                      .ranks = ranks.data(),
                                      .num_rows = logits.shape(0),
                                      .vocab_size = vocab_size,
                                      .logits_stride = logits.shape(1)};
  place.run(num_threads, &Ops::token_logprobs, reference::token_logprobs, params);
  return py::make_tuple(host_copy(logprobs, {logits.shape(0)}), host_copy(ranks, {logits.shape(0)}));
}

}  // namespace

void bind_testing_logits(py::module_& module) {
  module.def("process_logits", &run_process_logits, py::arg("instruction_set"), py::arg("logits"),
             py::arg("vocab_size"), py::arg("rows"), py::arg("num_threads") = 1);
  module.def("token_logprobs", &run_token_logprobs, py::arg("instruction_set"), py::arg("logits"),
             py::arg("vocab_size"), py::arg("token_ids"), py::arg("num_threads") = 1);
}

}  // namespace eagle31rt
