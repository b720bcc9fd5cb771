#include "engine/config_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"
#include "eagle31rt/dtype.h"
#include "eagle31rt/sampling_params.h"
#include "engine/text/utf8.h"
#include "ops/top_k/top_k.h"
#include "ops/verify_tree/verify_tree.h"

namespace eagle31rt {

namespace {

constexpr int32_t kMaxChainDrafts = 16;
constexpr size_t kMaxStopTokenIds = 1024;
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordTokens = 64;  // of one

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  E31_CHECK(value >= low && value <= high, kInvalidArgument, name, " is ", value, "; give ", low, " to ", high);
}

void check_trees(const EngineConfig& config) {
  check_range("num_speculative_tokens", config.num_speculative_tokens, 0, kMaxTreeDrafts);
  if (draft_tree_shape(config).is_chain()) {
    E31_CHECK(config.num_speculative_tokens <= kMaxChainDrafts, kInvalidArgument, "num_speculative_tokens is ",
              config.num_speculative_tokens, "; give 0 to ", kMaxChainDrafts, ", or ask for draft trees (tree_top_k)");
    return;
  }
  E31_CHECK(parse_device(config.device) < 0 && config.decode_state != "device", kUnsupported,
            "tree_top_k and speculative_token_tree make draft trees, which need device cpu and decode_state host or ",
            "auto in this version");
  tree_verify_method(parse_verify_method(config.rejection_sample_method));
  E31_CHECK(config.speculation_policy == "fixed", kUnsupported,
            "speculation_policy auto chooses the length of chains in this version; give fixed with draft trees");
  E31_CHECK(config.draft_sample_method == "greedy" || config.tree_top_k <= 1, kUnsupported,
            "draft_sample_method probabilistic draws chains and speculative_token_tree; which nodes a tree of ",
            "tree_top_k has depends on their probability, so it needs greedy");
}

void check_speculation(const EngineConfig& config) {
  check_trees(config);
  E31_CHECK(config.num_speculative_tokens == 0 || !config.draft.empty(), kInvalidArgument, "num_speculative_tokens is ",
            config.num_speculative_tokens, " but no draft model is given; name one, or set 0");
  E31_CHECK(!config.draft.empty() || draft_tree_shape(config).is_chain(), kInvalidArgument,
            "tree_top_k and speculative_token_tree describe draft trees, but no draft model is given");
  E31_CHECK(!config.draft.empty() || (config.capture_layers.empty() && config.layer_id_convention.empty() &&
                                      config.feedback == "auto" && config.draft_sample_method == "greedy"),
            kInvalidArgument,
            "capture_layers, layer_id_convention, feedback and draft_sample_method describe a draft model, but none is "
            "given");
  const VerifyMethod method = parse_verify_method(config.rejection_sample_method);
  E31_CHECK(config.speculation_policy == "fixed" || config.speculation_policy == "auto", kInvalidArgument,
            "speculation_policy is \"", config.speculation_policy, "\"; give fixed or auto");
  E31_CHECK(config.draft_sample_method == "greedy" || config.draft_sample_method == "probabilistic", kInvalidArgument,
            "draft_sample_method is \"", config.draft_sample_method, "\"; give greedy or probabilistic");
  E31_CHECK(
      config.draft_sample_method == "greedy" || method == VerifyMethod::kStandard || method == VerifyMethod::kBlock,
      kInvalidArgument, "draft_sample_method probabilistic needs rejection_sample_method standard or block, not ",
      config.rejection_sample_method);
  const std::vector<double>& rates = config.synthetic_acceptance_rates;
  if (method != VerifyMethod::kSynthetic) {
    E31_CHECK(rates.empty(), kInvalidArgument,
              "synthetic_acceptance_rates needs rejection_sample_method synthetic, not ",
              config.rejection_sample_method);
    return;
  }
  E31_CHECK(static_cast<int32_t>(rates.size()) == config.num_speculative_tokens, kInvalidArgument,
            "synthetic_acceptance_rates has ", rates.size(), " entries; give one for each of the ",
            config.num_speculative_tokens, " speculative tokens");
  for (size_t i = 0; i < rates.size(); ++i) {
    E31_CHECK(rates[i] >= 0 && rates[i] <= (i == 0 ? 1.0 : rates[i - 1]), kInvalidArgument,
              "synthetic_acceptance_rates[", i, "] is ", rates[i], "; rates lie in [0, 1] and do not increase");
  }
}

void check_ids(const char* name, std::span<const int32_t> ids, size_t max_count, int32_t vocab_size) {
  E31_CHECK(ids.size() <= max_count, kInvalidArgument, name, " has ", ids.size(), " entries; give at most ", max_count);
  for (int32_t id : ids) {
    E31_CHECK(id >= 0 && id < vocab_size, kInvalidArgument, name, " contains ", id,
              ", which is outside the vocabulary of ", vocab_size, " ids");
  }
}

void check_penalty(const char* name, float value) {
  E31_CHECK(value >= -2 && value <= 2, kInvalidArgument, name, " is ", value, "; give -2 to 2");
}

void check_logit_bias(std::span<const TokenBias> biases, int32_t vocab_size) {
  std::vector<int32_t> ids;
  for (const TokenBias& entry : biases) {
    E31_CHECK(std::isfinite(entry.bias), kInvalidArgument, "logit_bias of token ", entry.token_id, " is ", entry.bias,
              "; give a finite number");
    ids.push_back(entry.token_id);
  }
  check_ids("logit_bias", ids, static_cast<size_t>(vocab_size), vocab_size);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  E31_CHECK(twice == ids.end(), kInvalidArgument, "logit_bias names token ", *twice, " twice");
}

void check_bad_words(std::span<const std::vector<int32_t>> bad_words, int32_t vocab_size) {
  E31_CHECK(bad_words.size() <= kMaxBadWords, kInvalidArgument, "bad_words has ", bad_words.size(),
            " entries; give at most ", kMaxBadWords);
  for (size_t i = 0; i < bad_words.size(); ++i) {
    E31_CHECK(!bad_words[i].empty(), kInvalidArgument, "bad_words[", i, "] is empty; give at least one token");
    check_ids("bad_words", bad_words[i], kMaxBadWordTokens, vocab_size);
  }
}

void check_stop_strings(const SamplingParams& params) {
  constexpr size_t kMaxStopStrings = 64;
  constexpr size_t kMaxStopBytes = 1024;
  const std::vector<std::string>& stop = params.stop;
  E31_CHECK(stop.size() <= kMaxStopStrings, kInvalidArgument, "stop has ", stop.size(), " strings; give at most ",
            kMaxStopStrings);
  for (size_t i = 0; i < stop.size(); ++i) {
    E31_CHECK(!stop[i].empty() && stop[i].size() <= kMaxStopBytes, kInvalidArgument, "stop[", i, "] has ",
              stop[i].size(), " bytes; give 1 to ", kMaxStopBytes);
    E31_CHECK(is_valid_utf8(stop[i]), kInvalidArgument, "stop[", i, "] is not valid UTF-8");
  }
  E31_CHECK(stop.empty() || params.detokenize, kInvalidArgument,
            "stop strings are matched on text, which detokenize = false switches off; set it to true");
}

// What changes logits, and what is reported of them.
void check_processors(const SamplingParams& params, int32_t vocab_size) {
  E31_CHECK(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0, kInvalidArgument,
            "repetition_penalty is ", params.repetition_penalty, "; give a positive number (1 = off)");
  check_penalty("frequency_penalty", params.frequency_penalty);
  check_penalty("presence_penalty", params.presence_penalty);
  check_logit_bias(params.logit_bias, vocab_size);
  check_ids("allowed_token_ids", params.allowed_token_ids, static_cast<size_t>(vocab_size), vocab_size);
  check_bad_words(params.bad_words, vocab_size);
  check_range("num_logprobs", params.num_logprobs, -1, kMaxTopK);
  check_range("num_prompt_logprobs", params.num_prompt_logprobs, -1, kMaxTopK);
  for (size_t i = 0; i < params.logits_processors.size(); ++i) {
    E31_CHECK(params.logits_processors[i] != nullptr, kInvalidArgument, "logits_processors[", i, "] is null");
  }
}

}  // namespace

DraftTreeShape draft_tree_shape(const EngineConfig& config) {
  return make_draft_tree_shape(config.num_speculative_tokens, config.tree_top_k, config.tree_depth,
                               config.speculative_token_tree);
}

VerifyMethod parse_verify_method(const std::string& name) {
  if (name == "equality") return VerifyMethod::kEquality;
  if (name == "standard") return VerifyMethod::kStandard;
  if (name == "block") return VerifyMethod::kBlock;
  if (name == "synthetic") return VerifyMethod::kSynthetic;
  fail(ErrorCode::kInvalidArgument, "rejection_sample_method is \"", name,
       "\"; give equality, standard, block or synthetic");
}

int32_t parse_device(const std::string& name) {
  if (name == "cpu") return -1;
  if (name == "cuda") return 0;
  int32_t index = -1;
  if (name.starts_with("cuda:")) {
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + 5, end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  E31_CHECK(index >= 0, kInvalidArgument, "device is \"", name, "\"; give cpu, cuda or cuda:N");
  return index;
}

void check_device(const EngineConfig& config) {
  const bool on_cpu = parse_device(config.device) < 0;
  E31_CHECK(config.gpu_memory_utilization > 0 && config.gpu_memory_utilization <= 1, kInvalidArgument,
            "gpu_memory_utilization is ", config.gpu_memory_utilization, "; give a number above 0 and up to 1");
  const std::string& state = config.decode_state;
  E31_CHECK(state == "auto" || state == "host" || state == "device", kInvalidArgument, "decode_state is \"", state,
            "\"; give auto, host or device");
  E31_CHECK(on_cpu || state != "host", kInvalidArgument, "decode_state host needs device cpu, not ", config.device);
}

void check_engine_config(const EngineConfig& config) {
  E31_CHECK(!config.model.empty(), kInvalidArgument, "model is empty; give the directory of a checkpoint");
  if (config.dtype != "auto") parse_floating_point_dtype(config.dtype);
  if (config.kv_cache_dtype != "auto") parse_floating_point_dtype(config.kv_cache_dtype);
  check_range("page_size", config.page_size, 1, 1024);
  check_range("max_model_len", config.max_model_len, 0, int64_t{1} << 24);
  check_range("max_num_seqs", config.max_num_seqs, 1, 65536);
  check_range("max_num_batched_tokens", config.max_num_batched_tokens, 1, 1 << 20);
  check_range("kv_cache_memory_bytes", config.kv_cache_memory_bytes, 0, int64_t{1} << 50);
  check_range("num_threads", config.num_threads, 0, 1024);
  check_device(config);
  check_speculation(config);
}

void check_sampling_params(const SamplingParams& params, int32_t vocab_size) {
  E31_CHECK(std::isfinite(params.temperature) && params.temperature >= 0, kInvalidArgument, "temperature is ",
            params.temperature, "; give 0 (greedy) or a positive number");
  E31_CHECK(params.top_k >= 0, kInvalidArgument, "top_k is ", params.top_k, "; give 0 (off) or a positive number");
  E31_CHECK(params.top_p > 0 && params.top_p <= 1, kInvalidArgument, "top_p is ", params.top_p,
            "; give a number above 0 and up to 1");
  E31_CHECK(params.min_p >= 0 && params.min_p <= 1, kInvalidArgument, "min_p is ", params.min_p, "; give 0 to 1");
  E31_CHECK(params.max_tokens >= 1, kInvalidArgument, "max_tokens is ", params.max_tokens, "; give 1 or more");
  E31_CHECK(params.min_tokens >= 0 && params.min_tokens <= params.max_tokens, kInvalidArgument, "min_tokens is ",
            params.min_tokens, "; give 0 to max_tokens (", params.max_tokens, ")");
  check_range("num_speculative_tokens", params.num_speculative_tokens, -1, kMaxTreeDrafts);
  check_ids("stop_token_ids", params.stop_token_ids, kMaxStopTokenIds, vocab_size);
  check_stop_strings(params);
  check_processors(params, vocab_size);
}

}  // namespace eagle31rt
