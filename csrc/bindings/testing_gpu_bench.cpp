// Operators at the shapes of real models on a CUDA device, for bench/gpu.py: what a call must move and compute at
// least, and how long it takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_device.h"
#include "device/execution_context.h"
#include "ops/cuda_backend.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

using Shape = std::map<std::string, int64_t>;

// One operator with its buffers. `copies` sets of the large inputs take turns, so that none is met in the L2 cache.
class GpuProblem {
 public:
  GpuProblem(const std::string& op, const Shape& shape, int64_t copies)
      : device_(*testing_device("cuda")), shape_(shape) {
    static const std::map<std::string, void (GpuProblem::*)()> makers = {
        {"linear", &GpuProblem::make_linear},
        {"fc_norm", &GpuProblem::make_fc_norm},
        {"paged_attention", &GpuProblem::make_attention},
        {"rms_norm", &GpuProblem::make_rms_norm},
        {"silu_mul", &GpuProblem::make_silu_mul},
        {"sample", &GpuProblem::make_sample},
    };
    const auto maker = makers.find(op);
    E31_CHECK(maker != makers.end(), kInvalidArgument, "there is no benchmark of \"", op, "\"");
    for (int64_t i = 0; i < copies; ++i) (this->*maker->second)();
    device_.synchronize();
  }

  // Nanoseconds of one call: the median over `repeats` batches of `calls` calls that are queued without waiting.
  std::vector<double> time(int repeats, int calls) {
    ThreadPool pool(1);
    ExecutionContext context{pool, *cuda_backend().ops, nullptr, &device_};
    for (auto& run : runs_) run(context);  // warm-up, and growth of the workspace
    device_.synchronize();
    std::vector<double> times;
    size_t next = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) runs_[next++ % runs_.size()](context);
      device_.synchronize();
      times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
                      calls);
    }
    return times;
  }

  double bytes() const { return bytes_; }
  double flops() const { return flops_; }

 private:
  int64_t size(const char* name) const {
    const auto found = shape_.find(name);
    E31_CHECK(found != shape_.end() && found->second > 0, kInvalidArgument, "give a positive ", name);
    return found->second;
  }

  // Every byte 0x3c: a small finite number in each float format.
  template <typename T>
  T* buffer(int64_t count) {
    buffers_.emplace_back(device_, static_cast<size_t>(count) * sizeof(T));
    device_.fill(buffers_.back().data(), 0x3c, buffers_.back().size());
    return buffers_.back().as<T>();
  }

  template <typename T>
  const T* upload(const std::vector<T>& values) {
    buffers_.emplace_back(device_, values.size() * sizeof(T));
    device_.copy_to_device(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    device_.synchronize();
    return buffers_.back().as<T>();
  }

  PackedWeightView weight(int64_t out_features, int64_t in_features) {
    PackedWeightView view{nullptr, DType::kBFloat16, out_features, in_features, WeightLayout::kRowMajor};
    view.data = buffer<uint16_t>(out_features * view.row_stride());
    return view;
  }

  void make_linear() {
    const int64_t m = size("num_rows"), n = size("out_features"), k = size("in_features");
    const LinearParams params{.input = buffer<float>(m * k),
                              .weight = weight(n, k),
                              .bias = nullptr,
                              .residual = nullptr,
                              .output = buffer<float>(m * n),
                              .num_rows = m,
                              .input_stride = k,
                              .output_stride = n};
    bytes_ = 2.0 * n * k + 4.0 * m * (n + k);
    flops_ = 2.0 * m * n * k;
    runs_.push_back([params](ExecutionContext& context) { context.ops.linear(params, context); });
  }

  void make_fc_norm() {
    const int64_t m = size("num_rows"), hidden = size("hidden_size"), chunk = size("chunk_size");
    const int64_t chunks = size("num_chunks"), k = chunk * chunks;
    const FcNormParams params{.captured = buffer<float>(m * k),
                              .norm_weight = buffer<float>(k),
                              .weight = weight(hidden, k),
                              .bias = nullptr,
                              .output = buffer<float>(m * hidden),
                              .num_rows = m,
                              .chunk_size = chunk,
                              .num_chunks = static_cast<int32_t>(chunks),
                              .mode = FcNormMode::kPerChunk,
                              .epsilon = 1e-5f};
    bytes_ = 2.0 * hidden * k + 4.0 * (m * (k + hidden) + k);
    flops_ = 2.0 * m * hidden * k;
    runs_.push_back([params](ExecutionContext& context) { context.ops.fc_norm(params, context); });
  }

  void make_attention() {
    const int64_t requests = size("num_requests"), rows = size("rows_per_request"), context_length = size("context");
    const int64_t heads = size("num_heads"), kv_heads = size("num_kv_heads"), dim = size("head_dim");
    constexpr int64_t kPageSize = 16;
    const int64_t pages = (context_length + rows + kPageSize - 1) / kPageSize;
    std::vector<int32_t> table(static_cast<size_t>(requests * pages)), row_begin,
        kv_begin(static_cast<size_t>(requests), 0);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i * 7919 % table.size());
    for (int64_t i = 0; i <= requests; ++i) row_begin.push_back(static_cast<int32_t>(i * rows));
    const std::vector<int32_t> kv_length(static_cast<size_t>(requests), static_cast<int32_t>(context_length));
    const int64_t elements = requests * pages * kPageSize * kv_heads * dim;
    PagedAttentionParams params{};
    params.query = buffer<float>(requests * rows * heads * dim);
    params.output = buffer<float>(requests * rows * heads * dim);
    params.cache = {
        buffer<uint16_t>(elements),     buffer<uint16_t>(elements), DType::kBFloat16,       requests * pages, kPageSize,
        static_cast<int32_t>(kv_heads), static_cast<int32_t>(dim),  KeyLayout::kDimsFastest};
    params.page_table = upload(table);
    params.row_begin = upload(row_begin);
    params.kv_begin = upload(kv_begin);
    params.kv_length = upload(kv_length);
    params.num_requests = requests;
    params.num_rows = requests * rows;
    params.query_stride = heads * dim;
    params.page_table_stride = static_cast<int32_t>(pages);
    params.num_heads = static_cast<int32_t>(heads);
    params.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    bytes_ = 4.0 * requests * (context_length + rows) * kv_heads * dim + 8.0 * requests * rows * heads * dim;
    flops_ =
        4.0 * requests * rows * heads * dim * (static_cast<double>(context_length) + 0.5 * static_cast<double>(rows));
    runs_.push_back([params](ExecutionContext& context) { context.ops.paged_attention(params, context); });
  }

  void make_rms_norm() {
    const int64_t m = size("num_rows"), hidden = size("hidden_size");
    const RmsNormParams params{.residual = buffer<float>(m * hidden),
                               .delta = nullptr,
                               .weight = buffer<float>(hidden),
                               .output = buffer<float>(m * hidden),
                               .num_rows = m,
                               .hidden_size = hidden,
                               .residual_stride = hidden,
                               .output_stride = hidden,
                               .epsilon = 1e-5f};
    bytes_ = 8.0 * m * hidden + 4.0 * hidden;
    flops_ = 4.0 * m * hidden;
    runs_.push_back([params](ExecutionContext& context) { context.ops.rms_norm(params, context); });
  }

  void make_silu_mul() {
    const int64_t m = size("num_rows"), intermediate = size("intermediate_size");
    const SiluMulParams params{buffer<float>(2 * m * intermediate), buffer<float>(m * intermediate), m, intermediate};
    bytes_ = 12.0 * m * intermediate;
    flops_ = 20.0 * m * intermediate;
    runs_.push_back([params](ExecutionContext& context) { context.ops.silu_mul(params, context); });
  }

  void make_sample() {
    const int64_t m = size("num_rows"), vocab = size("vocab_size");
    std::vector<SamplingRow> rows(static_cast<size_t>(m));
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r] = {.temperature = size("drawn") == 1 ? 0.0f : 0.7f,
                 .top_k = 0,
                 .top_p = size("drawn") == 3 ? 0.9f : 1.0f,
                 .min_p = 0.0f,
                 .seed = r,
                 .position = 100};
    }
    SampleParams params{};
    params.logits = buffer<float>(m * vocab);
    params.rows = upload(rows);
    params.token_ids = buffer<int32_t>(m);
    params.num_rows = m;
    params.vocab_size = vocab;
    params.logits_stride = vocab;
    bytes_ = 4.0 * m * vocab;
    flops_ = 0;
    runs_.push_back([params](ExecutionContext& context) { context.ops.sample(params, context); });
  }

  Device& device_;
  Shape shape_;
  double bytes_ = 0, flops_ = 0;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::function<void(ExecutionContext&)>> runs_;
};

}  // namespace

void bind_testing_gpu_bench(py::module_& module) {
  py::class_<GpuProblem>(module, "GpuProblem")
      .def(py::init<const std::string&, const Shape&, int64_t>(), py::arg("op"), py::arg("shape"),
           py::arg("copies") = 1)
      .def("time", &GpuProblem::time, py::arg("repeats"), py::arg("calls"))
      .def_property_readonly("bytes", &GpuProblem::bytes)
      .def_property_readonly("flops", &GpuProblem::flops);
}

}  // namespace eagle31rt
