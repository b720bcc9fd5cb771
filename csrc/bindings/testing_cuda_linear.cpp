// linear and fc_norm on a CUDA device with arrays, and how they divide their work, for tests/test_cuda_linear.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_device.h"
#include "bindings/testing_forms.h"
#include "device/execution_context.h"
#include "ops/cuda_backend.h"
#include "ops/fc_norm/config.h"
#include "ops/linear/config.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using SharedFloats = std::pmr::vector<float>;

SharedFloats shared_copy(const Floats& array) { return {array.data(), array.data() + array.size()}; }

SharedFloats shared_copy(const std::optional<Floats>& array) { return array ? shared_copy(*array) : SharedFloats(); }

const float* data_or_null(const SharedFloats& floats) { return floats.empty() ? nullptr : floats.data(); }

PackedWeight make_weight(const Floats& values, const std::string& dtype) {
  E31_CHECK(values.ndim() == 2, kInvalidArgument, "weight is not [out_features, in_features]");
  PackedWeight weight = make_case_weight(parse_floating_point_dtype(dtype), values.shape(0), values.shape(1));
  weight.write_rows(0, values.data(), DType::kFloat32, values.shape(0));
  return weight;
}

Floats to_array(const SharedFloats& floats, int64_t num_rows) {
  Floats array({static_cast<py::ssize_t>(num_rows), static_cast<py::ssize_t>(floats.size()) / num_rows});
  std::copy(floats.begin(), floats.end(), array.mutable_data());
  return array;
}

Floats run_linear(Device& device, const PackedWeight& weight, const Floats& input, const std::optional<Floats>& bias,
                  const std::optional<Floats>& residual, int64_t output_stride) {
  const PackedWeightView view = weight.view();
  const int64_t num_rows = input.shape(0);
  E31_CHECK(input.ndim() == 2 && input.shape(1) >= view.in_features && output_stride >= view.out_features,
            kInvalidArgument, "rows are narrower than the weight");
  const SharedFloats rows = shared_copy(input), biases = shared_copy(bias), residuals = shared_copy(residual);
  SharedFloats output(static_cast<size_t>(num_rows * output_stride), std::numeric_limits<float>::quiet_NaN());
  const LinearParams params = {.input = rows.data(),
                               .weight = view,
                               .bias = data_or_null(biases),
                               .residual = data_or_null(residuals),
                               .output = output.data(),
                               .num_rows = num_rows,
                               .input_stride = input.shape(1),
                               .output_stride = output_stride};
  ThreadPool pool(1);
  ExecutionContext context{pool, *cuda_backend().ops, nullptr, &device};
  context.ops.linear(params, context);
  device.synchronize();
  return to_array(output, num_rows);
}

// input: [num_rows, input_stride]. Returns [num_rows, output_stride], NaN where nothing was written.
Floats cuda_linear(const Floats& weight_values, const std::string& dtype, const Floats& input,
                   const std::optional<Floats>& bias, const std::optional<Floats>& residual, int64_t output_stride) {
  Device& device = *testing_device("cuda");
  const DeviceMemoryScope scope(&device);
  return run_linear(device, make_weight(weight_values, dtype), input, bias, residual, output_stride);
}

// The same for a quantised weight.
Floats cuda_linear_of_codes(const CodeArray& codes, const ScaleArray& scales, const std::string& code,
                            const std::string& scale, int32_t group_size, const std::string& dtype,
                            const Floats& input) {
  Device& device = *testing_device("cuda");
  const DeviceMemoryScope scope(&device);
  PackedWeight weight = make_case_weight(parse_floating_point_dtype(dtype), codes.shape(0), codes.shape(1),
                                         parse_form(code, scale, group_size));
  write_codes(weight, 0, codes, scales);
  return run_linear(device, weight, input, std::nullopt, std::nullopt, codes.shape(0));
}

Floats cuda_fc_norm(const Floats& weight_values, const std::string& dtype, const Floats& captured,
                    const Floats& norm_weight, int32_t num_chunks, FcNormMode mode, float epsilon) {
  Device& device = *testing_device("cuda");
  const DeviceMemoryScope scope(&device);
  const PackedWeight weight = make_weight(weight_values, dtype);
  const int64_t num_rows = captured.shape(0), in_features = weight_values.shape(1);
  E31_CHECK(captured.shape(1) == in_features && norm_weight.size() == in_features && in_features % num_chunks == 0,
            kInvalidArgument, "captured is not [num_rows, num_chunks * chunk_size]");
  const SharedFloats rows = shared_copy(captured), norm_weights = shared_copy(norm_weight);
  SharedFloats output(static_cast<size_t>(num_rows * weight_values.shape(0)), std::numeric_limits<float>::quiet_NaN());
  const FcNormParams params = {.captured = rows.data(),
                               .norm_weight = norm_weights.data(),
                               .weight = weight.view(),
                               .bias = nullptr,
                               .output = output.data(),
                               .num_rows = num_rows,
                               .chunk_size = in_features / num_chunks,
                               .num_chunks = num_chunks,
                               .mode = mode,
                               .epsilon = epsilon};
  ThreadPool pool(1);
  ExecutionContext context{pool, *cuda_backend().ops, nullptr, &device};
  context.ops.fc_norm(params, context);
  device.synchronize();
  return to_array(output, num_rows);
}

py::dict linear_config(int64_t num_rows, int64_t out_features, int64_t in_features) {
  const cuda::LinearConfig config = cuda::choose_linear_config(num_rows, out_features, in_features);
  return py::dict(py::arg("tile_rows") = config.tile == cuda::LinearTile::kRows16 ? 16 : 64,
                  py::arg("segment_size") = config.segment_size, py::arg("num_segments") = config.num_segments,
                  py::arg("spread") = config.spread, py::arg("num_row_tiles") = config.num_row_tiles,
                  py::arg("num_column_tiles") = config.num_column_tiles, py::arg("num_blocks") = config.num_blocks(),
                  py::arg("partial_stride") = config.partial_stride());
}

py::dict fc_norm_config(int64_t num_rows, int64_t hidden_size) {
  const cuda::FcNormConfig config = cuda::choose_fc_norm_config(num_rows, hidden_size);
  return py::dict(py::arg("tile_rows") = config.tile == cuda::FcNormTile::kRows16 ? 16 : 64,
                  py::arg("num_row_tiles") = config.num_row_tiles,
                  py::arg("num_column_tiles") = config.num_column_tiles, py::arg("num_blocks") = config.num_blocks());
}

}  // namespace

void bind_testing_cuda_linear(py::module_& module) {
  module.def("cuda_linear", cuda_linear, py::arg("weight"), py::arg("dtype"), py::arg("input"), py::arg("bias"),
             py::arg("residual"), py::arg("output_stride"));
  module.def("cuda_linear_of_codes", cuda_linear_of_codes, py::arg("codes"), py::arg("scales"), py::arg("code"),
             py::arg("scale"), py::arg("group_size"), py::arg("dtype"), py::arg("input"));
  module.def("cuda_fc_norm", cuda_fc_norm, py::arg("weight"), py::arg("dtype"), py::arg("captured"),
             py::arg("norm_weight"), py::arg("num_chunks"), py::arg("mode"), py::arg("epsilon"));
  module.def("linear_config", linear_config, py::arg("num_rows"), py::arg("out_features"), py::arg("in_features"));
  module.def("fc_norm_config", fc_norm_config, py::arg("num_rows"), py::arg("hidden_size"));
}

}  // namespace eagle31rt
