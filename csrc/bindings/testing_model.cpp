#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string_view>

#include "bindings/testing.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/draft_formats.h"
#include "model/rope_angles.h"
#include "model/weights.h"

namespace py = pybind11;

namespace eagle31rt {
namespace {

py::dict tensors_to_dict(const Checkpoint& checkpoint) {
  py::dict result;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const py::bytes data(reinterpret_cast<const char*>(entry.data), static_cast<size_t>(entry.num_bytes));
    result[py::str(entry.name)] = py::make_tuple(entry.dtype_name, py::tuple(py::cast(entry.shape)), data);
  }
  return result;
}

const char* rope_kind_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::kDefault:
      return "default";
    case RopeKind::kLinear:
      return "linear";
    case RopeKind::kLlama3:
      return "llama3";
    case RopeKind::kYarn:
      return "yarn";
  }
  return "unknown";
}

py::dict rope_to_dict(const RopeConfig& rope) {
  using namespace py::literals;
  return py::dict("kind"_a = rope_kind_name(rope.kind), "theta"_a = rope.theta, "rotary_dim"_a = rope.rotary_dim,
                  "interleaved"_a = rope.interleaved, "factor"_a = rope.factor,
                  "low_freq_factor"_a = rope.low_freq_factor, "high_freq_factor"_a = rope.high_freq_factor,
                  "original_max_position_embeddings"_a = rope.original_max_position_embeddings,
                  "beta_fast"_a = rope.beta_fast, "beta_slow"_a = rope.beta_slow,
                  "attention_factor"_a = rope.attention_factor, "mscale"_a = rope.mscale,
                  "mscale_all_dim"_a = rope.mscale_all_dim, "truncate"_a = rope.truncate);
}

py::dict mla_to_dict(const MlaConfig& mla) {
  using namespace py::literals;
  return py::dict("q_lora_rank"_a = mla.q_lora_rank, "kv_lora_rank"_a = mla.kv_lora_rank,
                  "qk_nope_head_dim"_a = mla.qk_nope_head_dim, "qk_rope_head_dim"_a = mla.qk_rope_head_dim,
                  "v_head_dim"_a = mla.v_head_dim, "scale"_a = mla.scale, "norm_epsilon"_a = mla.norm_epsilon);
}

template <typename Config>
py::dict common_to_dict(const Config& config) {
  using namespace py::literals;
  py::dict result(
      "hidden_size"_a = config.hidden_size, "intermediate_size"_a = config.intermediate_size,
      "num_heads"_a = config.num_heads, "num_kv_heads"_a = config.num_kv_heads, "head_dim"_a = config.head_dim,
      "vocab_size"_a = config.vocab_size, "rms_norm_eps"_a = config.rms_norm_eps, "qkv_bias"_a = config.qkv_bias,
      "mlp_bias"_a = config.mlp_bias, "tie_word_embeddings"_a = config.tie_word_embeddings,
      "rope"_a = rope_to_dict(config.rope), "dtype"_a = dtype_name(config.dtype), "num_layers"_a = config.num_layers);
  if (config.qk_norm) result["qk_norm"] = true;
  if (config.mla) result["mla"] = mla_to_dict(*config.mla);
  return result;
}

py::dict moe_to_dict(const MoeConfig& moe) {
  using namespace py::literals;
  return py::dict("num_experts"_a = moe.num_experts, "num_experts_per_token"_a = moe.num_experts_per_token,
                  "moe_intermediate_size"_a = moe.moe_intermediate_size,
                  "num_shared_experts"_a = moe.num_shared_experts, "num_dense_layers"_a = moe.num_dense_layers,
                  "num_groups"_a = moe.num_groups, "num_groups_chosen"_a = moe.num_groups_chosen,
                  "sigmoid"_a = moe.scoring == MoeScoring::kSigmoid, "normalise_top_k"_a = moe.normalise_top_k,
                  "routed_scaling_factor"_a = moe.routed_scaling_factor, "bias_correction"_a = moe.bias_correction);
}

py::dict decoder_to_dict(const DecoderConfig& config) {
  py::dict result = common_to_dict(config);
  result["model_type"] = config.model_type;
  result["max_position_embeddings"] = config.max_position_embeddings;
  result["output_bias"] = config.output_bias;
  if (!config.sliding_windows.empty()) result["sliding_windows"] = config.sliding_windows;
  result["eos_token_ids"] = config.eos_token_ids;
  if (config.moe) result["moe"] = moe_to_dict(*config.moe);
  return result;
}

py::dict draft_to_dict(const DraftConfig& config) {
  py::dict result = common_to_dict(config);
  result["target_hidden_size"] = config.target_hidden_size;
  result["draft_vocab_size"] = config.draft_vocab_size;
  result["fc_bias"] = config.fc_bias;
  result["capture_layers"] = config.capture_layers;
  result["capture_rule"] = config.capture_rule;
  result["fc_norm"] = config.fc_norm;
  result["norm_before_fc"] = config.norm_before_fc;
  result["norm_output"] = config.norm_output;
  result["norm_before_residual"] = config.norm_before_residual;
  return result;
}

// A packed weight as [out_features, in_features] float32.
py::object unpacked(const PackedWeight& weight) {
  if (weight.empty()) return py::none();
  const PackedWeightView view = weight.view();
  py::array_t<float> result({view.out_features, view.in_features});
  auto values = result.mutable_unchecked<2>();
  for (int64_t o = 0; o < view.out_features; ++o) {
    for (int64_t k = 0; k < view.in_features; ++k) values(o, k) = packed_value(view, o, k);
  }
  return result;
}

py::array_t<float> to_array(const Vector& vector) {
  return py::array_t<float>(static_cast<py::ssize_t>(vector.size()), vector.data());
}

py::dict layer_to_dict(const LayerWeights& layer) {
  using namespace py::literals;
  return py::dict("qkv"_a = unpacked(layer.qkv), "output"_a = unpacked(layer.output),
                  "gate_up"_a = unpacked(layer.gate_up), "down"_a = unpacked(layer.down),
                  "qkv_bias"_a = to_array(layer.qkv_bias), "output_bias"_a = to_array(layer.output_bias),
                  "gate_up_bias"_a = to_array(layer.gate_up_bias), "down_bias"_a = to_array(layer.down_bias),
                  "input_norm"_a = to_array(layer.input_norm), "hidden_norm"_a = to_array(layer.hidden_norm),
                  "post_attention_norm"_a = to_array(layer.post_attention_norm));
}

std::string optional_text(const std::string& path) { return file_exists(path) ? read_text_file(path) : std::string(); }

DType resolve_dtype(const std::string& name, DType automatic) {
  return name == "auto" ? automatic : parse_floating_point_dtype(name);
}

// values = false: sizes only (a real model would take minutes to unpack).
py::dict load_decoder(const std::string& directory, const std::string& dtype, bool values) {
  const DecoderConfig config = read_decoder_config(directory);
  const DecoderWeights weights =
      load_decoder_weights(Checkpoint::open(directory), config, resolve_dtype(dtype, config.dtype));
  py::dict result;
  result["num_bytes"] = weights.num_bytes();
  result["num_layers"] = weights.layers.size();
  result["dtype"] = dtype_name(weights.dtype);
  result["tied"] = weights.head.empty();
  if (!values) return result;
  result["embedding"] = unpacked(weights.embedding);
  result["head"] = unpacked(weights.head);
  result["final_norm"] = to_array(weights.final_norm);
  py::list layers;
  for (const LayerWeights& layer : weights.layers) layers.append(layer_to_dict(layer));
  result["layers"] = layers;
  return result;
}

py::dict load_draft(const std::string& directory, const std::string& target_directory, const std::string& dtype,
                    const std::string& layer_id_convention, bool values) {
  const DecoderConfig target = read_decoder_config(target_directory);
  DraftOverrides overrides;
  overrides.layer_id_convention = layer_id_convention;
  const DraftConfig config =
      parse_draft_config(read_text_file(directory + "/config.json"), target, overrides, directory + "/config.json");
  const DraftWeights weights =
      load_draft_weights(Checkpoint::open(directory), config, target, resolve_dtype(dtype, config.dtype));
  py::dict result;
  result["num_bytes"] = weights.num_bytes();
  result["dtype"] = dtype_name(weights.dtype);
  result["draft_to_target"] = weights.draft_to_target;
  result["config"] = draft_to_dict(config);
  if (!values) return result;
  result["fc"] = unpacked(weights.fc);
  result["fc_bias"] = to_array(weights.fc_bias);
  result["fc_norm"] = to_array(weights.fc_norm);
  result["embedding"] = unpacked(weights.embedding);
  result["head"] = unpacked(weights.head);
  result["final_norm"] = to_array(weights.final_norm);
  result["layer"] = layer_to_dict(weights.layers.front());
  return result;
}

py::dict rope_angles(const std::string& config_json, const std::vector<int32_t>& positions) {
  using namespace py::literals;
  const RopeAngles angles(parse_decoder_config(config_json, "", "config.json").rope);
  const auto num_rows = static_cast<int64_t>(positions.size());
  py::array_t<float> cosine({num_rows, int64_t{angles.half_dim()}});
  py::array_t<float> sine({num_rows, int64_t{angles.half_dim()}});
  angles.compute(positions.data(), num_rows, cosine.mutable_data(), sine.mutable_data());
  return py::dict("cosine"_a = cosine, "sine"_a = sine, "inverse_frequency"_a = angles.inverse_frequency(),
                  "attention_factor"_a = angles.attention_factor());
}

}  // namespace

void bind_testing_model(py::module_& module) {
  using namespace py::literals;
  module.def(
      "read_checkpoint", [](const std::string& directory) { return tensors_to_dict(Checkpoint::open(directory)); },
      "directory"_a, "name -> (dtype as stored, shape, bytes)");
  module.def(
      "read_checkpoint_bytes",
      [](const py::bytes& image) {
        const auto view = static_cast<std::string_view>(image);
        return tensors_to_dict(
            Checkpoint::from_memory(reinterpret_cast<const std::byte*>(view.data()), view.size(), "image"));
      },
      "image"_a);
  module.def(
      "parse_decoder_config",
      [](const py::bytes& config, const py::bytes& generation_config) {
        return decoder_to_dict(parse_decoder_config(config, generation_config, "config.json"));
      },
      "config"_a, "generation_config"_a = py::bytes());
  module.def(
      "parse_draft_config",
      [](const py::bytes& config, const py::bytes& target_config, const std::vector<int32_t>& capture_layers,
         const std::string& layer_id_convention, const std::string& feedback) {
        const DecoderConfig target = parse_decoder_config(target_config, "", "target config.json");
        return draft_to_dict(
            parse_draft_config(config, target, {capture_layers, layer_id_convention, feedback}, "draft config.json"));
      },
      "config"_a, "target_config"_a, "capture_layers"_a = std::vector<int32_t>{}, "layer_id_convention"_a = "",
      "feedback"_a = "auto");
  module.def(
      "draft_formats",
      [] {
        py::list result;
        for (const DraftFormat& format : draft_formats()) {
          const std::vector<std::string> unread(format.unread.begin(), format.unread.end());
          result.append(py::make_tuple(format.name, format.recognised_by, format.layer_ids, unread));
        }
        return result;
      },
      "(name, recognised by, layer ids, keys that are not read) in the order of trying");
  module.def(
      "recognise_draft_format",
      [](const py::bytes& config) {
        const Json root = parse_json_object(std::string(config), "config.json");
        return recognise_draft_format(JsonReader(root, "config.json")).name;
      },
      "config"_a);
  module.def("load_decoder_weights", &load_decoder, "directory"_a, "dtype"_a = "auto", "values"_a = true);
  module.def("load_draft_weights", &load_draft, "directory"_a, "target_directory"_a, "dtype"_a = "auto",
             "layer_id_convention"_a = "", "values"_a = true);
  module.def("rope_angles", &rope_angles, "config"_a, "positions"_a);
}

}  // namespace eagle31rt
