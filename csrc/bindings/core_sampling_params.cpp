#include "bindings/core_sampling_params.h"

#include <pybind11/stl.h>

#include <map>
#include <vector>

#include "bindings/python_callbacks.h"
#include "eagle31rt/engine.h"
#include "eagle31rt/sampling_params.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

std::map<int32_t, float> logit_bias(const SamplingParams& params) {
  std::map<int32_t, float> result;
  for (const TokenBias& entry : params.logit_bias) result[entry.token_id] = entry.bias;
  return result;
}

void set_logit_bias(SamplingParams& params, const std::map<int32_t, float>& biases) {
  params.logit_bias.clear();
  for (const auto& [token_id, bias] : biases) params.logit_bias.push_back({token_id, bias});
}

py::list logits_processors(const SamplingParams& params) {
  py::list result;
  for (const auto& processor : params.logits_processors) result.append(python_object_of(processor.get()));
  return result;
}

void set_logits_processors(SamplingParams& params, const std::vector<py::object>& callables) {
  std::vector<std::shared_ptr<LogitsProcessor>> processors;
  for (const py::object& callable : callables) processors.push_back(make_python_processor(callable));
  params.logits_processors = std::move(processors);
}

}  // namespace

void bind_sampling_params(py::module_& module) {
  py::class_<SamplingParams>(module, "SamplingParams")
      .def(py::init<>())
      .def_readwrite("temperature", &SamplingParams::temperature)
      .def_readwrite("top_k", &SamplingParams::top_k)
      .def_readwrite("top_p", &SamplingParams::top_p)
      .def_readwrite("min_p", &SamplingParams::min_p)
      .def_readwrite("seed", &SamplingParams::seed)
      .def_readwrite("max_tokens", &SamplingParams::max_tokens)
      .def_readwrite("min_tokens", &SamplingParams::min_tokens)
      .def_readwrite("ignore_eos", &SamplingParams::ignore_eos)
      .def_readwrite("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_readwrite("stop", &SamplingParams::stop)
      .def_readwrite("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output)
      .def_readwrite("skip_special_tokens", &SamplingParams::skip_special_tokens)
      .def_readwrite("detokenize", &SamplingParams::detokenize)
      .def_readwrite("num_speculative_tokens", &SamplingParams::num_speculative_tokens)
      .def_readwrite("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_readwrite("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_readwrite("presence_penalty", &SamplingParams::presence_penalty)
      .def_property("logit_bias", &logit_bias, &set_logit_bias)
      .def_readwrite("allowed_token_ids", &SamplingParams::allowed_token_ids)
      .def_readwrite("bad_words", &SamplingParams::bad_words)
      .def_readwrite("num_logprobs", &SamplingParams::num_logprobs)
      .def_readwrite("num_prompt_logprobs", &SamplingParams::num_prompt_logprobs)
      .def_property(
          "constraint", [](const SamplingParams& params) { return python_object_of(params.constraint.get()); },
          [](SamplingParams& params, const py::object& object) { params.constraint = make_python_constraint(object); })
      .def_property("logits_processors", &logits_processors, &set_logits_processors);
  py::class_<TokenLogprobs>(module, "TokenLogprobs")
      .def_readonly("token_id", &TokenLogprobs::token_id)
      .def_readonly("logprob", &TokenLogprobs::logprob)
      .def_readonly("rank", &TokenLogprobs::rank)
      .def_readonly("top_ids", &TokenLogprobs::top_ids)
      .def_readonly("top_logprobs", &TokenLogprobs::top_logprobs);
}

}  // namespace eagle31rt
