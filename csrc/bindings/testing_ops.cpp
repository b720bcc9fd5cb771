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
#include "ops/paged_attention/config.h"

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

// A batch of attention on the device of a runner.
struct AttentionBatch {
  DeviceMemoryScope scope;
  std::pmr::vector<float> query, output;
  std::pmr::vector<int32_t> page_table, row_begin, kv_begin, kv_length;
  std::pmr::vector<uint64_t> ancestor_mask;
  int64_t num_rows, query_stride;
  int32_t page_table_stride, mask_words;
  float scale;

  // query [rows, num_heads * key_dim], page_table [requests, any], row_begin [requests + 1], ancestor_mask
  // [rows, words] or none.
  AttentionBatch(const Array<float>& queries, const Array<int32_t>& pages, const Array<int32_t>& begins,
                 const Array<int32_t>& kv_begins, const Array<int32_t>& kv_lengths, float score_scale,
                 const std::optional<Array<uint64_t>>& masks, const Runner& runner)
      : scope(runner.device),
        query(device_copy(queries)),
        page_table(device_copy(pages)),
        row_begin(device_copy(begins)),
        kv_begin(device_copy(kv_begins)),
        kv_length(device_copy(kv_lengths)),
        num_rows(queries.shape(0)),
        query_stride(queries.shape(1)),
        page_table_stride(static_cast<int32_t>(pages.shape(1))),
        mask_words(masks ? static_cast<int32_t>(masks->shape(1)) : 0),
        scale(score_scale) {
    if (masks) ancestor_mask = device_copy(*masks);
  }

  // Sets everything but the cache.
  template <typename Params>
  void fill(Params& params, int64_t key_dim, int64_t value_dim) {
    const int64_t num_heads = query_stride / key_dim;
    output.assign(static_cast<size_t>(num_rows * num_heads * value_dim), -1234.5f);
    params.query = query.data();
    params.output = output.data();
    params.page_table = page_table.data();
    params.row_begin = row_begin.data();
    params.kv_begin = kv_begin.data();
    params.kv_length = kv_length.data();
    params.ancestor_mask = mask_words > 0 ? ancestor_mask.data() : nullptr;
    params.num_requests = static_cast<int64_t>(kv_length.size());
    params.num_rows = num_rows;
    params.query_stride = query_stride;
    params.page_table_stride = page_table_stride;
    params.mask_words = mask_words;
    params.num_heads = static_cast<int32_t>(num_heads);
    params.scale = scale;
  }

  Array<float> rows() const { return host_copy(output, {num_rows, static_cast<int64_t>(output.size()) / num_rows}); }
};

// Bytes where the current scope puts them, a NaN in every dtype. Behind a pointer: an assigned pmr container keeps its
// own memory resource.
using Bytes = std::unique_ptr<std::pmr::vector<std::byte>>;
Bytes poisoned(size_t num_bytes) { return std::make_unique<std::pmr::vector<std::byte>>(num_bytes, std::byte{0xff}); }

// One layer's paged cache on a device, every entry a NaN until it is written. Runners must be of the same device.
class Cache {
 public:
  Cache(const std::string& dtype, int64_t num_pages, int32_t page_size, int32_t num_kv_heads, int32_t head_dim,
        const std::string& device)
      : view_{nullptr, nullptr, parse_floating_point_dtype(dtype), num_pages, page_size, num_kv_heads, head_dim} {
    const DeviceMemoryScope scope(testing_device(device));
    view_.key_layout = case_layouts().keys;
    const auto bytes = static_cast<size_t>(num_pages * page_size * num_kv_heads * head_dim * dtype_size(view_.dtype));
    key_ = poisoned(bytes);
    value_ = poisoned(bytes);
    view_.key = key_->data();
    view_.value = value_->data();
  }

  void append(const Array<float>& key, const Array<float>& value, const Array<int64_t>& slots, const Runner& runner) {
    const DeviceMemoryScope scope(runner.device);
    const std::pmr::vector<float> keys = device_copy(key), values = device_copy(value);
    const std::pmr::vector<int64_t> places = device_copy(slots);
    KvAppendParams params{keys.data(), values.data(), places.data(), view_, key.shape(0), key.shape(1)};
    runner.run(&Ops::kv_append, reference::kv_append, params);
  }

  Array<float> attend(const Array<float>& query, const Array<int32_t>& page_table, const Array<int32_t>& row_begin,
                      const Array<int32_t>& kv_begin, const Array<int32_t>& kv_length, float scale,
                      const std::optional<Array<uint64_t>>& ancestor_mask, const Runner& runner) const {
    AttentionBatch batch(query, page_table, row_begin, kv_begin, kv_length, scale, ancestor_mask, runner);
    PagedAttentionParams params{};
    params.cache = view_;
    batch.fill(params, view_.head_dim, view_.head_dim);
    runner.run(&Ops::paged_attention, reference::paged_attention, params);
    return batch.rows();
  }

  py::bytes key_bytes() const { return {reinterpret_cast<const char*>(key_->data()), key_->size()}; }
  py::bytes value_bytes() const { return {reinterpret_cast<const char*>(value_->data()), value_->size()}; }

 private:
  KvCacheView view_;
  Bytes key_, value_;
};

// The same for latent attention.
class LatentCache {
 public:
  LatentCache(const std::string& dtype, int64_t num_pages, int32_t page_size, int32_t latent_dim, int32_t rope_dim,
              const std::string& device)
      : view_{nullptr, parse_floating_point_dtype(dtype), num_pages, page_size, latent_dim, rope_dim} {
    const DeviceMemoryScope scope(testing_device(device));
    const auto bytes = static_cast<size_t>(num_pages * page_size * view_.entry_dim() * dtype_size(view_.dtype));
    data_ = poisoned(bytes);
    view_.data = data_->data();
  }

  void append(const Array<float>& entries, const Array<int64_t>& slots, const Runner& runner) {
    const DeviceMemoryScope scope(runner.device);
    const std::pmr::vector<float> rows = device_copy(entries);
    const std::pmr::vector<int64_t> places = device_copy(slots);
    MlaAppendParams params{rows.data(), places.data(), view_, entries.shape(0), entries.shape(1)};
    runner.run(&Ops::mla_append, reference::mla_append, params);
  }

  Array<float> attend(const Array<float>& query, const Array<int32_t>& page_table, const Array<int32_t>& row_begin,
                      const Array<int32_t>& kv_begin, const Array<int32_t>& kv_length, float scale,
                      const std::optional<Array<uint64_t>>& ancestor_mask, const Runner& runner) const {
    AttentionBatch batch(query, page_table, row_begin, kv_begin, kv_length, scale, ancestor_mask, runner);
    MlaAttentionParams params{};
    params.cache = view_;
    batch.fill(params, view_.entry_dim(), view_.latent_dim);
    runner.run(&Ops::mla_attention, reference::mla_attention, params);
    return batch.rows();
  }

 private:
  LatentCacheView view_;
  Bytes data_;
};

py::dict describe_attention_config(int64_t num_rows, int64_t num_requests, int32_t num_kv_heads, int32_t group,
                                   int32_t value_dim, int64_t max_length, int32_t max_queries,
                                   int32_t num_multiprocessors) {
  const AttentionConfig config = attention_config(
      {num_rows, num_requests, num_kv_heads, group, value_dim, max_length, max_queries, num_multiprocessors});
  return py::dict(py::arg("tile_queries") = config.tile_queries, py::arg("heads_per_tile") = config.heads_per_tile,
                  py::arg("head_blocks") = config.head_blocks, py::arg("rows_per_tile") = config.rows_per_tile,
                  py::arg("num_tiles") = config.num_tiles, py::arg("num_ranges") = config.num_ranges,
                  py::arg("workspace_bytes") = config.workspace_bytes);
}

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
      .def(py::init<const std::string&, int64_t, int32_t, int32_t, int32_t, const std::string&>(), py::arg("dtype"),
           py::arg("num_pages"), py::arg("page_size"), py::arg("num_kv_heads"), py::arg("head_dim"),
           py::arg("device") = "cpu")
      .def("append", &Cache::append, py::arg("key"), py::arg("value"), py::arg("slots"), py::arg("runner"))
      .def("attend", &Cache::attend, py::arg("query"), py::arg("page_table"), py::arg("row_begin"), py::arg("kv_begin"),
           py::arg("kv_length"), py::arg("scale"), py::arg("ancestor_mask"), py::arg("runner"))
      .def_property_readonly("key_bytes", &Cache::key_bytes)
      .def_property_readonly("value_bytes", &Cache::value_bytes);
  py::class_<LatentCache>(module, "LatentCache")
      .def(py::init<const std::string&, int64_t, int32_t, int32_t, int32_t, const std::string&>(), py::arg("dtype"),
           py::arg("num_pages"), py::arg("page_size"), py::arg("latent_dim"), py::arg("rope_dim"),
           py::arg("device") = "cpu")
      .def("append", &LatentCache::append, py::arg("entries"), py::arg("slots"), py::arg("runner"))
      .def("attend", &LatentCache::attend, py::arg("query"), py::arg("page_table"), py::arg("row_begin"),
           py::arg("kv_begin"), py::arg("kv_length"), py::arg("scale"), py::arg("ancestor_mask"), py::arg("runner"));
  module.def("attention_config", describe_attention_config, py::kw_only(), py::arg("num_rows"), py::arg("num_requests"),
             py::arg("num_kv_heads"), py::arg("group"), py::arg("value_dim"), py::arg("max_length"),
             py::arg("max_queries"), py::arg("num_multiprocessors"));
}

}  // namespace eagle31rt
