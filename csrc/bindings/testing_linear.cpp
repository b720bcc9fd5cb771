// linear, fc_norm, embedding and their packed weights, driven by hand; and a set of weights larger than any cache, for
// bench/kernels.py.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_forms.h"
#include "bindings/testing_machine.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using OptionalFloats = std::optional<Floats>;

const Ops& find_ops(const std::string& name) {
  const OpsList list = available_cpu_ops();
  for (int i = 0; i < list.count; ++i) {
    if (name == list.items[i]->name) return *list.items[i];
  }
  fail(ErrorCode::kInvalidArgument, "instruction set \"", name, "\" is not in this build or processor");
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  const OpsList list = available_cpu_ops();
  for (int i = 0; i < list.count; ++i) names.emplace_back(list.items[i]->name);
  return names;
}

const float* data_or_null(const OptionalFloats& array) { return array.has_value() ? array->data() : nullptr; }

int64_t write_rows(PackedWeight& weight, int64_t first_row, const py::array& rows, const std::string& dtype) {
  const DType source_dtype = parse_floating_point_dtype(dtype);
  E31_CHECK(rows.ndim() == 2 && rows.itemsize() == dtype_size(source_dtype) &&
                rows.shape(1) == weight.view().in_features && (rows.flags() & py::array::c_style) != 0,
            kInvalidArgument, "rows must be a C-ordered [n, in_features] array whose items have the size of ", dtype);
  return weight.write_rows(first_row, rows.data(), source_dtype, rows.shape(0));
}

py::array_t<uint8_t> packed_bytes(const PackedWeight& weight) {
  return py::array_t<uint8_t>(weight.num_bytes(), static_cast<const uint8_t*>(weight.view().data));
}

Floats linear(const PackedWeight& weight, const Floats& input, const OptionalFloats& bias,
              const OptionalFloats& residual, const std::string& isa, int num_threads) {
  const PackedWeightView view = weight.view();
  E31_CHECK(input.ndim() == 2 && input.shape(1) == view.in_features, kInvalidArgument, "input is not [n, in_features]");
  E31_CHECK(!bias || bias->size() == view.out_features, kInvalidArgument, "bias is not [out_features]");
  E31_CHECK(!residual || residual->size() == input.shape(0) * view.out_features, kInvalidArgument,
            "residual is not [n, out_features]");
  Floats output({input.shape(0), static_cast<py::ssize_t>(view.out_features)});
  ThreadPool pool(num_threads);
  ExecutionContext context{pool, find_ops(isa)};
  context.ops.linear({input.data(), view, data_or_null(bias), data_or_null(residual), output.mutable_data(),
                      input.shape(0), view.in_features, view.out_features},
                     context);
  return output;
}

Floats fc_norm(const PackedWeight& weight, const Floats& captured, const OptionalFloats& norm_weight, int num_chunks,
               FcNormMode mode, float epsilon, const std::string& isa, int num_threads) {
  const PackedWeightView view = weight.view();
  E31_CHECK(captured.ndim() == 2 && captured.shape(1) == view.in_features, kInvalidArgument,
            "captured is not [n, in_features]");
  E31_CHECK(num_chunks > 0 && view.in_features % num_chunks == 0, kInvalidArgument, "in_features is not whole chunks");
  E31_CHECK(mode == FcNormMode::kNone || (norm_weight && norm_weight->size() == view.in_features), kInvalidArgument,
            "norm_weight is not [in_features]");
  Floats output({captured.shape(0), static_cast<py::ssize_t>(view.out_features)});
  ThreadPool pool(num_threads);
  ExecutionContext context{pool, find_ops(isa)};
  context.ops.fc_norm({captured.data(), data_or_null(norm_weight), view, nullptr, output.mutable_data(),
                       captured.shape(0), view.in_features / num_chunks, num_chunks, mode, epsilon},
                      context);
  return output;
}

Floats rms_norm(const Floats& input, const Floats& weight, float epsilon, const std::string& isa) {
  E31_CHECK(input.ndim() == 2 && input.shape(1) == weight.size(), kInvalidArgument, "input is not [n, weight.size]");
  Floats copy({input.shape(0), input.shape(1)}), output({input.shape(0), input.shape(1)});
  std::memcpy(copy.mutable_data(), input.data(), static_cast<size_t>(input.nbytes()));
  ThreadPool pool(1);
  ExecutionContext context{pool, find_ops(isa)};
  context.ops.rms_norm({copy.mutable_data(), nullptr, weight.data(), output.mutable_data(), input.shape(0),
                        weight.size(), weight.size(), weight.size(), epsilon},
                       context);
  return output;
}

// Different weights of the given shapes, streamed one after the other as a decode step does.
class WeightStream {
 public:
  // shapes: (out_features, in_features, how many)
  WeightStream(const std::vector<std::tuple<int64_t, int64_t, int>>& shapes, const std::string& dtype,
               const WeightForm& form, const std::string& isa, int num_threads)
      : pool_(num_threads), context_{pool_, find_ops(isa)} {
    const DType weight_dtype = parse_floating_point_dtype(dtype);
    int64_t most_in = 0, most_out = 0;
    for (const auto& [out_features, in_features, count] : shapes) {
      for (int i = 0; i < count; ++i) {
        weights_.emplace_back(weight_dtype, out_features, in_features, WeightLayout::kPanels, form);
        for (int64_t o = 0; o < out_features; ++o) write_case_row(weights_.back(), o, 0, 0);
      }
      most_in = std::max(most_in, in_features);
      most_out = std::max(most_out, out_features);
    }
    input_.assign(static_cast<size_t>(kMostRows * most_in), 0.5f);
    output_.resize(static_cast<size_t>(kMostRows * most_out));
  }

  int64_t num_bytes() const {
    int64_t total = 0;
    for (const PackedWeight& weight : weights_) total += weight.num_bytes();
    return total;
  }

  // Seconds of one pass of linear over all weights.
  double multiply(int64_t num_rows) {
    E31_CHECK(num_rows >= 1 && num_rows <= kMostRows, kInvalidArgument, "num_rows is ", num_rows, "; give 1 to 512");
    return time([&](const PackedWeightView& view, int64_t) {
      context_.ops.linear(
          {input_.data(), view, nullptr, nullptr, output_.data(), num_rows, view.in_features, view.out_features},
          context_);
    });
  }

  // Seconds of one pass of a plain read loop over the same memory, in as many parallel calls.
  double read() {
    std::atomic<uint32_t> checksum{0};
    return time([&](const PackedWeightView& view, int64_t num_bytes) {
      const int64_t num_parts = pool_.num_threads();
      auto task = [&](int64_t i, int) {
        const int64_t begin = num_bytes * i / num_parts / 256 * 256, end = num_bytes * (i + 1) / num_parts / 256 * 256;
        checksum += read_memory(static_cast<const char*>(view.data) + begin, static_cast<size_t>(end - begin));
      };
      pool_.parallel_for(num_parts, task);
    });
  }

 private:
  static constexpr int64_t kMostRows = 512;

  template <typename Body>
  double time(Body body) {
    const auto start = std::chrono::steady_clock::now();
    for (const PackedWeight& weight : weights_) body(weight.view(), weight.num_bytes());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  ThreadPool pool_;
  ExecutionContext context_;
  std::vector<PackedWeight> weights_;
  std::vector<float> input_, output_;
};

}  // namespace

void bind_testing_linear(py::module_& module) {
  using py::arg;
  module.def("instruction_sets", instruction_sets,
             "Names of the operator tables that this processor can run, best first.");
  py::class_<PackedWeight>(module, "PackedWeight")
      .def(py::init([](const std::string& dtype, int64_t out_features, int64_t in_features, const std::string& code,
                       const std::string& scale, int32_t group_size, bool row_major) {
             return PackedWeight(parse_floating_point_dtype(dtype), out_features, in_features,
                                 row_major ? WeightLayout::kRowMajor : WeightLayout::kPanels,
                                 parse_form(code, scale, group_size));
           }),
           arg("dtype"), arg("out_features"), arg("in_features"), arg("code") = "", arg("scale") = "",
           arg("group_size") = 0, arg("row_major") = false)
      .def("write_codes", write_codes, arg("first_row"), arg("codes"), arg("scales"))
      .def("write_rows", write_rows, arg("first_row"), arg("rows"), arg("dtype"))
      .def("packed_bytes", packed_bytes)
      .def("value", [](const PackedWeight& weight, int64_t o, int64_t k) { return packed_value(weight.view(), o, k); });
  py::enum_<FcNormMode>(module, "FcNormMode")
      .value("none", FcNormMode::kNone)
      .value("per_chunk", FcNormMode::kPerChunk)
      .value("whole", FcNormMode::kWhole);
  module.def("linear", linear, arg("weight"), arg("input"), arg("bias"), arg("residual"), arg("isa"),
             arg("num_threads"));
  module.def("fc_norm", fc_norm, arg("weight"), arg("captured"), arg("norm_weight"), arg("num_chunks"), arg("mode"),
             arg("epsilon"), arg("isa"), arg("num_threads"));
  module.def("rms_norm", rms_norm, arg("input"), arg("weight"), arg("epsilon"), arg("isa"));
  py::class_<WeightStream>(module, "WeightStream")
      .def(py::init([](const std::vector<std::tuple<int64_t, int64_t, int>>& shapes, const std::string& dtype,
                       const std::string& isa, int num_threads, const std::string& code, const std::string& scale,
                       int32_t group_size) {
             return std::make_unique<WeightStream>(shapes, dtype, parse_form(code, scale, group_size), isa,
                                                   num_threads);
           }),
           arg("shapes"), arg("dtype"), arg("isa"), arg("num_threads"), arg("code") = "", arg("scale") = "",
           arg("group_size") = 0)
      .def_property_readonly("num_bytes", &WeightStream::num_bytes)
      .def("multiply", &WeightStream::multiply, arg("num_rows"), py::call_guard<py::gil_scoped_release>())
      .def("read", &WeightStream::read, py::call_guard<py::gil_scoped_release>());
}

}  // namespace eagle31rt
