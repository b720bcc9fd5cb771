#include "model/quantised_config.h"

#include <string>

#include "base/check.h"

namespace eagle31rt {
namespace {

constexpr int64_t kMaxBlock = int64_t{1} << 16;
constexpr const char* kAdvice = "; use the model's unquantised checkpoint, or one in FP8 blocks or packed int4";

[[noreturn]] void refuse(const JsonReader& reader, const char* key, const std::string& supported) {
  fail(ErrorCode::kUnsupported, reader.source(), ": ", reader.name(key), " is ", reader.value(key), "; supported is ",
       supported, kAdvice);
}

void require_text(const JsonReader& reader, const char* key, const char* wanted) {
  if (reader.text(key).value_or("") != wanted) refuse(reader, key, concat('"', wanted, '"'));
}

void require_absent(const JsonReader& reader, const char* key) {
  if (reader.has(key)) refuse(reader, key, "null");
}

QuantisedFormat parse_fp8(const JsonReader& reader) {
  const auto block = reader.integers("weight_block_size", 2, 1, kMaxBlock);
  if (!block || block->size() != 2) refuse(reader, "weight_block_size", "[rows, columns], [128, 128] as a rule");
  if (reader.text("fmt").value_or("e4m3") != "e4m3") refuse(reader, "fmt", "\"e4m3\"");
  if (reader.text("activation_scheme").value_or("dynamic") != "dynamic") {
    refuse(reader, "activation_scheme", "\"dynamic\"");
  }
  return {QuantisedFormat::Kind::kFp8Blocks, (*block)[0], (*block)[1]};
}

// https://github.com/vllm-project/compressed-tensors: one group of settings, for weights only.
QuantisedFormat parse_compressed_tensors(const JsonReader& reader) {
  require_text(reader, "format", "pack-quantized");
  require_absent(reader, "kv_cache_scheme");
  const auto groups = reader.child("config_groups");
  E31_CHECK(groups && groups->object().size() == 1, kUnsupported, reader.source(), ": ", reader.name("config_groups"),
            " must be an object with one group of settings", kAdvice);
  const auto group = groups->child(groups->object().begin().key().c_str());
  E31_CHECK(group, kCheckpoint, reader.source(), ": ", reader.name("config_groups"), " holds an empty group");
  require_absent(*group, "input_activations");
  require_absent(*group, "output_activations");
  const auto weights = group->child("weights");
  E31_CHECK(weights, kCheckpoint, reader.source(), " lacks ", group->name("weights"));
  require_text(*weights, "type", "int");
  require_text(*weights, "strategy", "group");
  if (weights->integer("num_bits", 1, 64) != 4) refuse(*weights, "num_bits", "4");
  if (!weights->boolean_or("symmetric", true)) refuse(*weights, "symmetric", "true");
  return {QuantisedFormat::Kind::kPackedInt4, 1, weights->integer("group_size", 1, kMaxBlock)};
}

}  // namespace

std::optional<QuantisedFormat> parse_quantised_format(const JsonReader& config) {
  const auto reader = config.child("quantization_config");
  if (!reader) return std::nullopt;
  const std::string method = reader->text("quant_method").value_or("");
  if (method == "fp8") return parse_fp8(*reader);
  if (method == "compressed-tensors") return parse_compressed_tensors(*reader);
  refuse(*reader, "quant_method", "\"fp8\" (blocks) or \"compressed-tensors\" (packed int4)");
}

void require_quantisation_method(const JsonReader& quantisation, const char* wanted) {
  if (quantisation.text("quant_method").value_or("") != wanted) {
    fail(ErrorCode::kUnsupported, quantisation.source(), ": ", quantisation.name("quant_method"), " is ",
         quantisation.value("quant_method"), "; supported for this family is \"", wanted,
         "\"; use that checkpoint or the unquantised one");
  }
}

}  // namespace eagle31rt
