// Arrays from Python on the device that a test names, and rows of logits with their sampling parameters; for the
// testing_*.cpp that call operators with arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/testing_device.h"
#include "device/execution_context.h"
#include "ops/cuda_backend.h"
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

// Where operators run: "reference", "cuda", or the name of a CPU instruction set. While it lives, device_copy() gives
// memory that this place can read.
struct Place {
  std::string name;
  Device* device;  // null: the host
  DeviceMemoryScope scope;

  explicit Place(const std::string& place_name)
      : name(place_name), device(name == "cuda" ? testing_device(name) : nullptr), scope(device) {}

  template <typename Params>
  void run(int num_threads, void (*Ops::*op)(const Params&, ExecutionContext&), void (*reference)(const Params&),
           const Params& params) const {
    if (name == "reference") return reference(params);
    ThreadPool pool(num_threads);
    const Ops& ops = device != nullptr ? *cuda_backend().ops : ops_by_name(name);
    ExecutionContext context{pool, ops, nullptr, device};
    (ops.*op)(params, context);
    if (device != nullptr) device->synchronize();
  }
};

template <typename T>
std::pmr::vector<T> device_copy(const Array<T>& source) {
  return {source.data(), source.data() + source.size()};
}

template <typename T>
Array<T> host_copy(const std::pmr::vector<T>& source, std::vector<py::ssize_t> shape) {
  Array<T> copy(std::move(shape));
  std::copy(source.begin(), source.end(), copy.mutable_data());
  return copy;
}

// A batch of rows as Python gives it: a dict of arrays, one entry per row each.
struct RowBatch {
  std::pmr::vector<float> logits;  // [R, stride]
  int64_t stride;
  std::pmr::vector<SamplingRow> rows;
  std::pmr::vector<int32_t> masked_begin, masked_ids;
  bool masked = false;

  RowBatch(const Array<float>& row_logits, const py::dict& columns)
      : logits(device_copy(row_logits)), stride(row_logits.shape(1)), rows(row_logits.shape(0)) {
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
      masked_begin = device_copy(columns["masked_begin"].cast<Array<int32_t>>());
      masked_ids = device_copy(columns["masked_ids"].cast<Array<int32_t>>());
    }
  }

  SampleParams params(int64_t vocab_size) const {
    E31_CHECK(vocab_size >= 1 && vocab_size <= stride, kInvalidArgument, "vocab_size is ", vocab_size);
    SampleParams params = {};
    params.logits = logits.data();
    params.rows = rows.data();
    params.masked_begin = masked ? masked_begin.data() : nullptr;
    params.masked_ids = masked ? masked_ids.data() : nullptr;
    params.num_rows = static_cast<int64_t>(rows.size());
    params.vocab_size = vocab_size;
    params.logits_stride = stride;
    return params;
  }
};

}  // namespace eagle31rt
