#include "base/check.h"
#include "base/json.h"
#include "model/families/family.h"

namespace eagle31rt {
namespace {

constexpr Family kFamilies[] = {
    {"llama", parse_llama},
    {"smollm", parse_llama},
    {"mistral", parse_mistral},
    {"qwen2", parse_qwen2},
    {"qwen3", parse_qwen3},
    {"qwen3_moe", parse_qwen3_moe},
    {"gpt_oss", parse_gpt_oss},
    {"deepseek_v3", parse_deepseek_v3},
    {"gemma3_text", parse_gemma3_text},
    {"kimi_k2", parse_deepseek_v3},
};

constexpr const char* kKimiVision[] = {"vision_tower.", "mm_projector."};
constexpr const char* kGemmaVision[] = {"vision_tower.", "multi_modal_projector."};
constexpr Wrapper kWrappers[] = {{"kimi_k25", "language_model.", kKimiVision},  // Kimi K2.5 and later
                                 {"gemma3", "language_model.", kGemmaVision}};

}  // namespace

const Wrapper* find_wrapper(const JsonReader& config) {
  const std::string model_type = config.text("model_type").value_or("");
  for (const Wrapper& wrapper : kWrappers) {
    if (model_type == wrapper.model_type) return &wrapper;
  }
  return nullptr;
}

const Family& find_family(const JsonReader& config) {
  const auto model_type = config.text("model_type");
  E31_CHECK(model_type, kCheckpoint, config.source(), " lacks \"model_type\"");
  std::string supported;
  for (const Family& family : kFamilies) {
    if (*model_type == family.model_type) return family;
    supported += (supported.empty() ? "" : ", ") + std::string(family.model_type);
  }
  for (const Wrapper& wrapper : kWrappers) supported += ", " + std::string(wrapper.model_type);
  fail(ErrorCode::kUnsupported, config.source(), ": model_type ", quote(*model_type),
       " is not supported; supported are ", supported);
}

}  // namespace eagle31rt
