// The operator table for tests/test_ops_*.py, and direct calls of single operators with arrays for
// tests/test_op_elementwise.py, tests/test_op_attention.py and tests/test_thread_pool.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_device.h"
#include "bindings/testing_rows.h"
#include "device/execution_context.h"
#include "ops/cuda_backend.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

// Where to run: "reference", "cuda", or "cpu" with an instruction set ("" = the best) and a number of threads.
struct Runner {
  std::string mode;
  Device* device;
  const Ops* ops = nullptr;
  int num_threads;

  Runner(const std::string& wanted_mode, const std::string& instruction_set, int threads)
      : mode(wanted_mode), device(testing_device(wanted_mode)), num_threads(threads) {
    if (device != nullptr) {
      ops = cuda_backend().ops;
      return;
    }
    const OpsList list = available_cpu_ops();
    for (int i = 0; i < list.count; ++i) {
      if (instruction_set.empty() || instruction_set == list.items[i]->name) {
        ops = list.items[i];
        break;
      }
    }
    E31_CHECK(ops != nullptr, kInvalidArgument, "instruction set \"", instruction_set, "\" is not available here");
  }

  // Runs `body(context)` and waits for the device.
  template <typename Body>
  void run_on_device(Body body) const {
    ThreadPool pool(device == nullptr ? num_threads : 1);
    ExecutionContext context{pool, *ops, nullptr, device};
    body(context);
    if (device != nullptr) device->synchronize();
  }

  // For parameters in memory that the device can read (DeviceMemoryScope).
  template <typename Params>
  void run(void (*Ops::*op)(const Params&, ExecutionContext&), void (*reference)(const Params&),
           const Params& params) const {
    if (mode == "reference") return reference(params);
    run_on_device([&](ExecutionContext& context) { (ops->*op)(params, context); });
  }
};

class Case {
 public:
  // device: where its buffers lie, "cpu" or "cuda". The reference runs on either.
  Case(const std::string& op, int variant, const std::vector<uint64_t>& row_ids, const std::string& device)
      : num_rows_(row_ids.size()), device_(testing_device(device)) {
    const DeviceMemoryScope scope(device_);
    for (const OpEntry& entry : op_table()) {
      if (entry.name != op) continue;
      E31_CHECK(variant >= 0 && variant < static_cast<int>(entry.variants.size()), kInvalidArgument, op,
                " has no variant ", variant);
      case_ = entry.make(variant, row_ids);
    }
    E31_CHECK(case_ != nullptr, kInvalidArgument, "there is no operator \"", op, "\"");
  }

  std::vector<py::bytes> run(const std::string& mode, const std::string& instruction_set, int num_threads) {
    const DeviceMemoryScope scope(device_);
    const Runner runner(mode, instruction_set, num_threads);
    E31_CHECK(mode == "reference" || runner.device == device_, kInvalidArgument,
              "the case was made for another device");
    if (mode == "reference") {
      case_->run_reference();
    } else {
      runner.run_on_device([&](ExecutionContext& context) { case_->run(context); });
    }
    std::vector<py::bytes> rows;
    for (size_t r = 0; r < num_rows_; ++r) {
      const auto bytes = case_->output(static_cast<int64_t>(r));
      rows.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return rows;
  }

 private:
  size_t num_rows_;
  Device* device_;
  std::unique_ptr<OpCase> case_;
};

std::vector<py::dict> list_ops() {
  std::vector<py::dict> ops;
  for (const OpEntry& entry : op_table()) {
    const Tolerance& cuda = entry.cuda_tolerance.absolute < 0 ? entry.tolerance : entry.cuda_tolerance;
    ops.push_back(py::dict(py::arg("name") = entry.name, py::arg("variants") = entry.variants,
                           py::arg("integer_output") = entry.integer_output,
                           py::arg("absolute") = entry.tolerance.absolute,
                           py::arg("relative") = entry.tolerance.relative, py::arg("cuda_absolute") = cuda.absolute,
                           py::arg("cuda_relative") = cuda.relative));
  }
  return ops;
}

std::vector<std::string> available_instruction_sets() {
  const OpsList list = available_cpu_ops();
  std::vector<std::string> names;
  for (int i = 0; i < list.count; ++i) names.emplace_back(list.items[i]->name);
  return names;
}

// Returns (output, residual).
py::tuple run_rms_norm(const Array<float>& input, const Array<float>& weight, float epsilon,
                       const std::optional<Array<float>>& delta, const Runner& runner) {
  const DeviceMemoryScope scope(runner.device);
  std::pmr::vector<float> residual = device_copy(input), output(residual.size());
  const std::pmr::vector<float> scale = device_copy(weight);
  const std::pmr::vector<float> added = delta ? device_copy(*delta) : std::pmr::vector<float>();
  RmsNormParams params{};
  params.residual = residual.data();
  params.delta = delta ? added.data() : nullptr;
  params.weight = scale.data();
  params.output = output.data();
  params.num_rows = input.shape(0);
  params.hidden_size = params.residual_stride = params.output_stride = input.shape(1);
  params.epsilon = epsilon;
  runner.run(&Ops::rms_norm, reference::rms_norm, params);
  return py::make_tuple(host_copy(output, {input.shape(0), input.shape(1)}),
                        host_copy(residual, {input.shape(0), input.shape(1)}));
}

Array<float> run_silu_mul(const Array<float>& input, const Runner& runner) {
  const DeviceMemoryScope scope(runner.device);
  const std::pmr::vector<float> halves = device_copy(input);
  std::pmr::vector<float> output(halves.size() / 2);
  SiluMulParams params{halves.data(), output.data(), input.shape(0), input.shape(1) / 2};
  runner.run(&Ops::silu_mul, reference::silu_mul, params);
  return host_copy(output, {input.shape(0), input.shape(1) / 2});
}

// qkv rows hold query heads, then key heads, then whatever else; returns the rotated rows.
Array<float> run_rope(const Array<float>& qkv, const Array<float>& cosine, const Array<float>& sine, int32_t num_heads,
                      int32_t num_kv_heads, int32_t head_dim, bool interleaved, const Runner& runner) {
  const DeviceMemoryScope scope(runner.device);
  std::pmr::vector<float> rotated = device_copy(qkv);
  const std::pmr::vector<float> cosines = device_copy(cosine), sines = device_copy(sine);
  RopeParams params{};
  params.query = rotated.data();
  params.key = params.query + num_heads * head_dim;
  params.cosine = cosines.data();
  params.sine = sines.data();
  params.num_rows = qkv.shape(0);
  params.row_stride = qkv.shape(1);
  params.num_heads = num_heads;
  params.num_kv_heads = num_kv_heads;
  params.head_dim = head_dim;
  params.rotary_dim = static_cast<int32_t>(2 * cosine.shape(1));
  params.interleaved = interleaved;
  runner.run(&Ops::rope, reference::rope, params);
  return host_copy(rotated, {qkv.shape(0), qkv.shape(1)});
}

// One layer's paged cache, every entry a NaN until it is written.
class Cache {
 public:
  Cache(const std::string& dtype, int64_t num_pages, int32_t page_size, int32_t num_kv_heads, int32_t head_dim)
      : view_{nullptr, nullptr, parse_floating_point_dtype(dtype), num_pages, page_size, num_kv_heads, head_dim} {
    const auto bytes = static_cast<size_t>(num_pages * page_size * num_kv_heads * head_dim * dtype_size(view_.dtype));
    key_.assign(bytes, std::byte{0xff});
    value_.assign(bytes, std::byte{0xff});
    view_.key = key_.data();
    view_.value = value_.data();
  }

  void append(const Array<float>& key, const Array<float>& value, const Array<int64_t>& slots, const Runner& runner) {
    KvAppendParams params{key.data(), value.data(), slots.data(), view_, key.shape(0), key.shape(1)};
    runner.run(&Ops::kv_append, reference::kv_append, params);
  }

  Array<float> attend(const Array<float>& query, const Array<int32_t>& page_table, const Array<int32_t>& row_begin,
                      const Array<int32_t>& kv_begin, const Array<int32_t>& kv_length, float scale,
                      const std::optional<Array<uint64_t>>& ancestor_mask, const Runner& runner) const {
    Array<float> output({query.shape(0), query.shape(1)});
    PagedAttentionParams params{};
    params.query = query.data();
    params.output = output.mutable_data();
    params.cache = view_;
    params.page_table = page_table.data();
    params.row_begin = row_begin.data();
    params.kv_begin = kv_begin.data();
    params.kv_length = kv_length.data();
    params.ancestor_mask = ancestor_mask ? ancestor_mask->data() : nullptr;
    params.num_requests = kv_length.shape(0);
    params.num_rows = query.shape(0);
    params.query_stride = query.shape(1);
    params.page_table_stride = static_cast<int32_t>(page_table.shape(1));
    params.mask_words = ancestor_mask ? static_cast<int32_t>(ancestor_mask->shape(1)) : 0;
    params.num_heads = static_cast<int32_t>(query.shape(1) / view_.head_dim);
    params.scale = scale;
    runner.run(&Ops::paged_attention, reference::paged_attention, params);
    return output;
  }

  py::bytes key_bytes() const { return {reinterpret_cast<const char*>(key_.data()), key_.size()}; }
  py::bytes value_bytes() const { return {reinterpret_cast<const char*>(value_.data()), value_.size()}; }

 private:
  KvCacheView view_;
  std::vector<std::byte> key_, value_;
};

// Calls parallel_for num_calls times; returns how often each task ran.
Array<int64_t> count_tasks(int num_threads, int64_t num_tasks, int64_t num_calls) {
  Array<int64_t> counts(num_tasks);
  int64_t* data = counts.mutable_data();
  std::fill(data, data + num_tasks, 0);
  ThreadPool pool(num_threads);
  auto task = [&](int64_t i, int thread) { data[i] += thread >= 0 && thread < pool.num_threads() ? 1 : 1000000; };
  for (int64_t call = 0; call < num_calls; ++call) pool.parallel_for(num_tasks, task);
  return counts;
}

}  // namespace

void bind_testing_ops(py::module_& module) {
  module.def("list_ops", list_ops);
  module.def("available_instruction_sets", available_instruction_sets);
  module.attr("HOSTILE_ROW") = kHostileRow;
  module.def("count_tasks", count_tasks);
  py::class_<Case>(module, "Case")
      .def(py::init<const std::string&, int, const std::vector<uint64_t>&, const std::string&>(), py::arg("op"),
           py::arg("variant"), py::arg("row_ids"), py::arg("device") = "cpu")
      .def("run", &Case::run, py::arg("mode") = "cpu", py::arg("instruction_set") = "", py::arg("num_threads") = 1);
  py::class_<Runner>(module, "Runner")
      .def(py::init<const std::string&, const std::string&, int>(), py::arg("mode") = "cpu",
           py::arg("instruction_set") = "", py::arg("num_threads") = 1);
  module.def("rms_norm", run_rms_norm, py::arg("input"), py::arg("weight"), py::arg("epsilon"), py::arg("delta"),
             py::arg("runner"));
  module.def("silu_mul", run_silu_mul, py::arg("input"), py::arg("runner"));
  module.def("rope", run_rope, py::arg("qkv"), py::arg("cosine"), py::arg("sine"), py::arg("num_heads"),
             py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("interleaved"), py::arg("runner"));
  py::class_<Cache>(module, "KvCache")
      .def(py::init<const std::string&, int64_t, int32_t, int32_t, int32_t>(), py::arg("dtype"), py::arg("num_pages"),
           py::arg("page_size"), py::arg("num_kv_heads"), py::arg("head_dim"))
      .def("append", &Cache::append, py::arg("key"), py::arg("value"), py::arg("slots"), py::arg("runner"))
      .def("attend", &Cache::attend, py::arg("query"), py::arg("page_table"), py::arg("row_begin"), py::arg("kv_begin"),
           py::arg("kv_length"), py::arg("scale"), py::arg("ancestor_mask"), py::arg("runner"))
      .def_property_readonly("key_bytes", &Cache::key_bytes)
      .def_property_readonly("value_bytes", &Cache::value_bytes);
}

}  // namespace eagle31rt
