// Rows of logits and their sampling parameters as Python gives them; for testing_sampling.cpp and testing_tree.cpp.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

inline const Ops& ops_by_name(const std::string& name) {
  const OpsList list = available_cpu_ops();
  for (int i = 0; i < list.count; ++i) {
    if (name == list.items[i]->name) return *list.items[i];
  }
  fail(ErrorCode::kInvalidArgument, "instruction set \"", name, "\" is not available here");
}

inline VerifyMethod method_by_name(const std::string& name) {
  if (name == "equality") return VerifyMethod::kEquality;
  if (name == "standard") return VerifyMethod::kStandard;
  if (name == "block") return VerifyMethod::kBlock;
  E31_CHECK(name == "synthetic", kInvalidArgument, "method is \"", name, "\"");
  return VerifyMethod::kSynthetic;
}

// A batch of rows as Python gives it: a dict of arrays, one entry per row each. Keeps the arrays alive.
struct RowBatch {
  Array<float> logits;  // [R, stride]
  std::vector<SamplingRow> rows;
  Array<int32_t> masked_begin, masked_ids;
  bool masked = false;

  RowBatch(const Array<float>& row_logits, const py::dict& columns) : logits(row_logits), rows(row_logits.shape(0)) {
    const auto temperature = columns["temperature"].cast<Array<float>>();
    const auto top_k = columns["top_k"].cast<Array<int32_t>>();
    const auto top_p = columns["top_p"].cast<Array<float>>();
    const auto min_p = columns["min_p"].cast<Array<float>>();
    const auto seed = columns["seed"].cast<Array<uint64_t>>();
    const auto position = columns["position"].cast<Array<int64_t>>();
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r] = {temperature.at(r), top_k.at(r), top_p.at(r), min_p.at(r), seed.at(r), position.at(r)};
    }
    masked = columns.contains("masked_begin");
    if (masked) {
      masked_begin = columns["masked_begin"].cast<Array<int32_t>>();
      masked_ids = columns["masked_ids"].cast<Array<int32_t>>();
    }
  }

  SampleParams params(int64_t vocab_size) const {
    E31_CHECK(vocab_size >= 1 && vocab_size <= logits.shape(1), kInvalidArgument, "vocab_size is ", vocab_size);
    SampleParams params = {};
    params.logits = logits.data();
    params.rows = rows.data();
    params.masked_begin = masked ? masked_begin.data() : nullptr;
    params.masked_ids = masked ? masked_ids.data() : nullptr;
    params.num_rows = static_cast<int64_t>(rows.size());
    params.vocab_size = vocab_size;
    params.logits_stride = logits.shape(1);
    return params;
  }
};

}  // namespace eagle31rt
