// Memory plans for Python: what `eagle31rt plan` prints.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <vector>

#include "base/check.h"
#include "bindings/core.h"
#include "model/checkpoint.h"
#include "model/config_checks.h"
#include "model/draft_checks.h"
#include "model/memory_plan.h"

namespace py = pybind11;

namespace eagle31rt {
namespace {

struct PlanRequest {
  std::string target, draft;  // directories; draft may be empty
  std::vector<int32_t> tensor_parallel_sizes;
  bool leave_out;         // the sizes that do not divide the models, instead of refusing them
  int32_t max_model_len;  // 0: the model's
  int64_t num_rows;
  std::string dtype, kv_dtype;
};

struct PlanResult {
  DType dtype, kv_dtype;
  int32_t max_model_len, vocab_size;
  int64_t target_file_bytes, draft_file_bytes;
  std::vector<int32_t> sizes;               // planned
  std::vector<ModelPlan> target, draft;     // one for each of them
  std::map<int32_t, std::string> left_out;  // size -> why
};

DType chosen(const std::string& name, DType automatic) {
  return name == "auto" ? automatic : parse_floating_point_dtype(name);
}

struct Models {
  DecoderConfig config;
  std::optional<DraftConfig> draft_config;
};

Models read_configs(const PlanRequest& request) {
  Models models{read_decoder_config(request.target), std::nullopt};
  if (request.draft.empty()) return models;
  const std::string path = request.draft + "/config.json";
  models.draft_config = parse_draft_config(read_text_file(path), models.config, {}, path);
  return models;
}

PlanResult make_plan(const PlanRequest& request) {
  const auto [config, draft_config] = read_configs(request);
  PlanResult result{};
  result.dtype = chosen(request.dtype, config.dtype);
  result.kv_dtype = chosen(request.kv_dtype, result.dtype);
  result.max_model_len = serving_length(request.max_model_len, config);
  result.vocab_size = config.vocab_size;
  const WeightInventory target = decoder_inventory(Checkpoint::open(request.target), config, result.dtype);
  WeightInventory draft;
  if (draft_config) {
    const Checkpoint checkpoint = Checkpoint::open(request.draft);
    Findings findings;
    check_draft_weights(checkpoint, *draft_config, findings);
    draft = draft_inventory(checkpoint, result.dtype);
  }
  result.target_file_bytes = target.file_bytes;
  result.draft_file_bytes = draft.file_bytes;
  for (const int32_t size : request.tensor_parallel_sizes) {
    E31_CHECK(size >= 1, kInvalidArgument, "tensor_parallel_size is ", size, "; give 1 or more");
    try {
      const PlanShape shape{size, result.kv_dtype, request.num_rows};
      ModelPlan target_plan = plan_decoder(target, config, shape);
      if (draft_config) result.draft.push_back(plan_draft(draft, *draft_config, shape));
      result.target.push_back(std::move(target_plan));
      result.sizes.push_back(size);
    } catch (const Error& error) {
      if (!request.leave_out || error.code() != ErrorCode::kInvalidArgument) throw;
      result.left_out[size] = error.what();
    }
  }
  return result;
}

py::list plan_list(const std::vector<ModelPlan>& plans) {
  using namespace py::literals;
  py::list result;
  for (const ModelPlan& plan : plans) {
    result.append(py::dict("weights"_a = plan.weights, "weight_bytes"_a = plan.weight_bytes(),
                           "kv_bytes_per_token"_a = plan.kv_bytes_per_token,
                           "activation_bytes"_a = plan.activation_bytes));
  }
  return result;
}

py::dict plan_memory(const std::string& target, const std::string& draft,
                     const std::vector<int32_t>& tensor_parallel_sizes, bool leave_out, int32_t max_model_len,
                     int64_t num_rows, const std::string& dtype, const std::string& kv_dtype) {
  using namespace py::literals;
  PlanResult result;
  {
    const py::gil_scoped_release release;
    result = make_plan({target, draft, tensor_parallel_sizes, leave_out, max_model_len, num_rows, dtype, kv_dtype});
  }
  return py::dict("dtype"_a = dtype_name(result.dtype), "kv_cache_dtype"_a = dtype_name(result.kv_dtype),
                  "max_model_len"_a = result.max_model_len, "vocab_size"_a = result.vocab_size,
                  "target_file_bytes"_a = result.target_file_bytes, "draft_file_bytes"_a = result.draft_file_bytes,
                  "sizes"_a = result.sizes, "left_out"_a = result.left_out, "target"_a = plan_list(result.target),
                  "draft"_a = plan_list(result.draft));
}

}  // namespace

void bind_memory_plan(py::module_& module) {
  using namespace py::literals;
  module.def("plan_memory", &plan_memory, "target"_a, "draft"_a, "tensor_parallel_sizes"_a, "leave_out"_a,
             "max_model_len"_a, "num_rows"_a, "dtype"_a, "kv_cache_dtype"_a);
}

}  // namespace eagle31rt
