// The Python module eagle31rt._core: conversion only. Type stubs: python/eagle31rt/_core.pyi.
#include "bindings/core.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/core_features.h"
#include "bindings/core_sampling_params.h"
#include "bindings/error_translation.h"
#include "device/cpu/thread_pool.h"
#include "eagle31rt/engine.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

py::dict info_dict(const EngineInfo& info) {
  return py::dict(py::arg("device") = info.device, py::arg("instruction_set") = info.instruction_set,
                  py::arg("num_threads") = info.num_threads, py::arg("vocab_size") = info.vocab_size,
                  py::arg("max_model_len") = info.max_model_len, py::arg("page_size") = info.page_size,
                  py::arg("num_pages") = info.num_pages, py::arg("num_free_pages") = info.num_free_pages,
                  py::arg("weight_bytes") = info.weight_bytes, py::arg("draft_weight_bytes") = info.draft_weight_bytes,
                  py::arg("kv_cache_bytes") = info.kv_cache_bytes, py::arg("target_kv_bytes") = info.target_kv_bytes,
                  py::arg("draft_kv_bytes") = info.draft_kv_bytes, py::arg("logits_bytes") = info.logits_bytes,
                  py::arg("eos_token_ids") = info.eos_token_ids, py::arg("capture_layers") = info.capture_layers,
                  py::arg("capture_rule") = info.capture_rule, py::arg("dtype") = info.dtype,
                  py::arg("kv_cache_dtype") = info.kv_cache_dtype, py::arg("draft_vocab_size") = info.draft_vocab_size,
                  py::arg("num_speculative_tokens") = info.num_speculative_tokens);
}

py::dict stats_dict(const EngineStats& stats) {
  return py::dict(
      py::arg("num_running") = stats.num_running, py::arg("num_waiting") = stats.num_waiting,
      py::arg("num_preemptions") = stats.num_preemptions, py::arg("num_pages") = stats.num_pages,
      py::arg("num_used_pages") = stats.num_used_pages, py::arg("num_cached_pages") = stats.num_cached_pages,
      py::arg("prefix_cache_queries") = stats.prefix_cache_queries,
      py::arg("prefix_cache_hits") = stats.prefix_cache_hits, py::arg("draft_nanoseconds") = stats.draft_nanoseconds,
      py::arg("verify_nanoseconds") = stats.verify_nanoseconds,
      py::arg("sample_nanoseconds") = stats.sample_nanoseconds, py::arg("host_nanoseconds") = stats.host_nanoseconds,
      py::arg("num_fixed_steps") = stats.num_fixed_steps, py::arg("num_no_draft_steps") = stats.num_no_draft_steps,
      py::arg("num_plain_steps") = stats.num_plain_steps, py::arg("num_best_steps") = stats.num_best_steps,
      py::arg("num_probe_steps") = stats.num_probe_steps, py::arg("num_back_off_steps") = stats.num_back_off_steps);
}

namespace {

void bind_config(py::module_& module) {
  py::class_<EngineConfig>(module, "EngineConfig")
      .def(py::init<>())
      .def_readwrite("model", &EngineConfig::model)
      .def_readwrite("draft", &EngineConfig::draft)
      .def_readwrite("dtype", &EngineConfig::dtype)
      .def_readwrite("kv_cache_dtype", &EngineConfig::kv_cache_dtype)
      .def_readwrite("page_size", &EngineConfig::page_size)
      .def_readwrite("max_model_len", &EngineConfig::max_model_len)
      .def_readwrite("max_num_seqs", &EngineConfig::max_num_seqs)
      .def_readwrite("max_num_batched_tokens", &EngineConfig::max_num_batched_tokens)
      .def_readwrite("kv_cache_memory_bytes", &EngineConfig::kv_cache_memory_bytes)
      .def_readwrite("enable_prefix_caching", &EngineConfig::enable_prefix_caching)
      .def_readwrite("num_threads", &EngineConfig::num_threads)
      .def_readwrite("device", &EngineConfig::device)
      .def_readwrite("gpu_memory_utilization", &EngineConfig::gpu_memory_utilization)
      .def_readwrite("enforce_eager", &EngineConfig::enforce_eager)
      .def_readwrite("kept_features_memory_bytes", &EngineConfig::kept_features_memory_bytes)
      .def_readwrite("decode_state", &EngineConfig::decode_state)
      .def_readwrite("num_speculative_tokens", &EngineConfig::num_speculative_tokens)
      .def_readwrite("tree_top_k", &EngineConfig::tree_top_k)
      .def_readwrite("tree_depth", &EngineConfig::tree_depth)
      .def_readwrite("speculative_token_tree", &EngineConfig::speculative_token_tree)
      .def_readwrite("speculation_policy", &EngineConfig::speculation_policy)
      .def_readwrite("rejection_sample_method", &EngineConfig::rejection_sample_method)
      .def_readwrite("draft_sample_method", &EngineConfig::draft_sample_method)
      .def_readwrite("synthetic_acceptance_rates", &EngineConfig::synthetic_acceptance_rates)
      .def_readwrite("capture_layers", &EngineConfig::capture_layers)
      .def_readwrite("layer_id_convention", &EngineConfig::layer_id_convention)
      .def_readwrite("feedback", &EngineConfig::feedback)
      .def_readwrite("profile", &EngineConfig::profile);
}

void bind_request_options(py::module_& module) {
  py::class_<RequestOptions>(module, "RequestOptions")
      .def(py::init<>())
      .def_readwrite("priority", &RequestOptions::priority)
      .def_readwrite("timeout_seconds", &RequestOptions::timeout_seconds);
}

void bind_token_table(py::module_& module) {
  py::class_<TokenTable>(module, "TokenTable")
      .def(py::init(
               [](std::vector<std::string> bytes, std::vector<bool> is_special, int32_t num_leading_spaces_dropped) {
                 return TokenTable{std::move(bytes), std::move(is_special), num_leading_spaces_dropped};
               }),
           py::arg("bytes"), py::arg("is_special"), py::arg("num_leading_spaces_dropped"));
}

void bind_outputs(py::module_& module) {
  py::class_<SpeculationMetrics>(module, "SpeculationMetrics")
      .def_readonly("num_drafts", &SpeculationMetrics::num_drafts)
      .def_readonly("num_draft_tokens", &SpeculationMetrics::num_draft_tokens)
      .def_readonly("num_accepted_tokens", &SpeculationMetrics::num_accepted_tokens)
      .def_readonly("num_accepted_tokens_per_position", &SpeculationMetrics::num_accepted_tokens_per_position);
  py::class_<StepOutput>(module, "StepOutput")
      .def_readonly("request_id", &StepOutput::request_id)
      .def_readonly("new_token_ids", &StepOutput::new_token_ids)
      .def_readonly("logprobs", &StepOutput::logprobs)
      .def_readonly("prompt_logprobs", &StepOutput::prompt_logprobs)
      .def_property_readonly("finish_reason", [](const StepOutput& o) { return finish_reason_name(o.finish_reason); })
      .def_readonly("stop_token_id", &StepOutput::stop_token_id)
      .def_readonly("text", &StepOutput::text)
      .def_readonly("stop_string", &StepOutput::stop_string)
      .def_readonly("error", &StepOutput::error)
      .def_readonly("metrics", &StepOutput::metrics)
      .def_readonly("num_cached_tokens", &StepOutput::num_cached_tokens)
      .def_readonly("first_run_at", &StepOutput::first_run_at);
}

py::dict profile_dict(const EngineProfile& profile) {
  return py::dict(py::arg("num_steps") = profile.num_steps, py::arg("step") = profile.step,
                  py::arg("linear") = profile.linear, py::arg("attention") = profile.attention,
                  py::arg("logits") = profile.logits, py::arg("draft") = profile.draft,
                  py::arg("other") = profile.other, py::arg("scheduling") = profile.scheduling);
}

// Python sees signals between its own instructions only, so all outputs are in the outbox before a handler can raise.
void step_into(Engine& engine, const py::dict& outbox) {
  std::vector<StepOutput> outputs;
  {
    const py::gil_scoped_release release;
    outputs = engine.step();
  }
  for (StepOutput& output : outputs) {
    const py::int_ request_id(output.request_id);
    if (!outbox.contains(request_id)) outbox[request_id] = py::list();
    outbox[request_id].cast<py::list>().append(py::cast(std::move(output)));
  }
}

void bind_engine(py::module_& module) {
  // Loading and stepping run without the GIL; the engine itself is for one thread at a time.
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Engine>(module, "Engine")
      .def(py::init<const EngineConfig&>(), py::arg("config"), release)
      .def(
          "add_request",
          [](Engine& engine, int64_t request_id, const std::vector<int32_t>& prompt, const SamplingParams& params,
             const RequestOptions& options) { engine.add_request(request_id, prompt, params, options); },
          py::arg("request_id"), py::arg("prompt_token_ids"), py::arg("params"), py::arg("options") = RequestOptions{})
      .def(
          "check_request",
          [](const Engine& engine, const std::vector<int32_t>& prompt, const SamplingParams& params,
             const RequestOptions& options) { engine.check_request(prompt, params, options); },
          py::arg("prompt_token_ids"), py::arg("params"), py::arg("options") = RequestOptions{})
      .def("set_token_table", &Engine::set_token_table, py::arg("table"))
      .def("cancel", &Engine::cancel, py::arg("request_id"))
      .def("has_unfinished_requests", &Engine::has_unfinished_requests)
      .def("step", &Engine::step, release)
      .def("step_into", &step_into, py::arg("outbox"))
      .def("step_simple", &Engine::step_simple, release)
      .def("swap_draft", &Engine::swap_draft, py::arg("directory"), release)
      .def("check", &Engine::check)
      .def_property_readonly("info", [](const Engine& engine) { return info_dict(engine.info()); })
      .def_property_readonly("stats", [](const Engine& engine) { return stats_dict(engine.stats()); })
      .def("profile", [](Engine& engine) { return profile_dict(engine.take_profile()); });
}

py::dict cpu_info() {
  py::list available;
  const OpsList list = available_cpu_ops();
  for (int i = 0; i < list.count; ++i) available.append(list.items[i]->name);
  return py::dict(py::arg("instruction_set") = cpu_ops().name, py::arg("available_instruction_sets") = available,
                  py::arg("num_physical_cores") = num_physical_cores());
}

py::dict cuda_info() {
  const CudaDescription description = cuda_backend().describe();
  py::list devices;
  for (const DeviceInfo& device : description.devices) {
    devices.append(py::dict(py::arg("name") = device.name, py::arg("compute_capability") = device.compute_capability,
                            py::arg("num_multiprocessors") = device.num_multiprocessors,
                            py::arg("total_memory") = device.total_memory));
  }
  return py::dict(py::arg("runtime_version") = description.runtime_version,
                  py::arg("driver_version") = description.driver_version, py::arg("devices") = devices,
                  py::arg("problem") = description.problem);
}

}  // namespace

}  // namespace eagle31rt

PYBIND11_MODULE(_core, module) {
  using namespace eagle31rt;
  register_error_translation();
  bind_config(module);
  bind_sampling_params(module);
  bind_request_options(module);
  bind_token_table(module);
  bind_outputs(module);
  bind_engine(module);
  bind_async_engine(module);
  bind_features(module);
  bind_doctor(module);
  bind_memory_plan(module);
  module.def("cpu_info", &cpu_info);
  module.def("cuda_info", &cuda_info);
}
