// Building an engine: checkpoints, capture layers, lengths, KV pages.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/check.h"
#include "engine/config_check.h"
#include "engine/engine_impl.h"
#include "model/checkpoint.h"
#include "ops/ops.h"
#include "spec/chain_drafter.h"

namespace eagle31rt {

namespace {

std::string config_text(const std::string& directory) { return read_text_file(directory + "/config.json"); }

std::string generation_config_text(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  return file_exists(path) ? read_text_file(path) : std::string();
}

// Memory that new pages can take without pushing other processes out; 0 if the system does not tell.
int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t value = 0;
  while (meminfo >> key >> value >> unit) {
    if (key == "MemAvailable:") return value * 1024;
  }
  return 0;
}

DType chosen_dtype(const std::string& name, DType automatic) {
  return name == "auto" ? automatic : parse_floating_point_dtype(name);
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& config)
    : config_(config),
      method_((check_engine_config(config), parse_verify_method(config.rejection_sample_method))),
      pool_(config.num_threads),
      context_{pool_, cpu_ops(), config.profile ? &profiler_ : nullptr},
      draft_context_{pool_, cpu_ops(), nullptr} {
  load_models();
  choose_lengths_and_pages();
}

void Engine::Impl::load_models() {
  const DecoderConfig target_config =
      parse_decoder_config(config_text(config_.model), generation_config_text(config_.model), config_.model);
  // The draft's config decides what the target captures, and a wrong draft should be refused before weights are read.
  std::optional<DraftConfig> draft_config;
  if (!config_.draft.empty()) {
    const DraftOverrides overrides{config_.capture_layers, config_.layer_id_convention, config_.feedback};
    draft_config = parse_draft_config(config_text(config_.draft), target_config, overrides, config_.draft);
  }
  weight_dtype_ = chosen_dtype(config_.dtype, target_config.dtype);
  kv_dtype_ = chosen_dtype(config_.kv_cache_dtype, weight_dtype_);
  DecoderWeights target_weights = load_decoder_weights(Checkpoint::open(config_.model), target_config, weight_dtype_);
  decoder_ = std::make_unique<Decoder>(target_config, std::move(target_weights),
                                       draft_config ? draft_config->capture_layers : std::vector<int32_t>());
  if (!draft_config) return;
  DraftWeights draft_weights =
      load_draft_weights(Checkpoint::open(config_.draft), *draft_config, target_config, weight_dtype_);
  draft_ = std::make_unique<EagleDraft>(*draft_config, std::move(draft_weights), *decoder_);
}

void Engine::Impl::choose_lengths_and_pages() {
  const int32_t model_limit = decoder_->config().max_position_embeddings;
  max_model_len_ = config_.max_model_len > 0 ? config_.max_model_len : model_limit;
  E31_CHECK(max_model_len_ <= model_limit, kInvalidArgument, "max_model_len is ", max_model_len_,
            "; the model's max_position_embeddings is ", model_limit);
  E31_CHECK(max_model_len_ >= 2, kInvalidArgument, "max_model_len is ", max_model_len_, "; give 2 or more");

  const KvShape target_shape = decoder_->kv_shape(kv_dtype_);
  int64_t bytes_per_page = target_shape.bytes_per_token() * config_.page_size;
  if (draft_) bytes_per_page += draft_->kv_shape(kv_dtype_).bytes_per_token() * config_.page_size;

  const int64_t pages_per_sequence = (max_model_len_ + config_.page_size - 1) / config_.page_size;
  int64_t num_pages = pages_per_sequence * config_.max_num_seqs;
  if (config_.kv_cache_memory_bytes > 0) {
    num_pages = std::min(num_pages, config_.kv_cache_memory_bytes / bytes_per_page);
  } else if (const int64_t available = available_memory_bytes(); available > 0) {
    num_pages = std::min(num_pages, available / 4 / bytes_per_page);
  }
  E31_CHECK(num_pages >= 1, kInvalidArgument, "kv_cache_memory_bytes gives ", num_pages, " pages of ", bytes_per_page,
            " bytes; give room for at least one page");
  num_pages = std::min<int64_t>(num_pages, INT32_MAX);

  page_pool_ = std::make_unique<PagePool>(num_pages, config_.page_size);
  target_kv_ = std::make_unique<KvStorage>(target_shape, num_pages, config_.page_size);
  if (!draft_) return;
  draft_kv_ = std::make_unique<KvStorage>(draft_->kv_shape(kv_dtype_), num_pages, config_.page_size);
  drafter_ =
      std::make_unique<ChainDrafter>(*draft_, *draft_kv_,
                                     ChainDrafter::Config{.num_slots = config_.max_num_seqs,
                                                          .page_size = config_.page_size,
                                                          .draw = config_.draft_sample_method == "probabilistic"});
  for (int32_t slot = config_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

EngineInfo Engine::Impl::info() const {
  const int64_t tokens = page_pool_->num_pages() * config_.page_size;
  EngineInfo info;
  info.instruction_set = context_.ops.name;
  info.num_threads = pool_.num_threads();
  info.vocab_size = decoder_->config().vocab_size;
  info.max_model_len = max_model_len_;
  info.page_size = config_.page_size;
  info.num_pages = page_pool_->num_pages();
  info.num_free_pages = page_pool_->num_free();
  info.weight_bytes = decoder_->weights().num_bytes();
  info.kv_cache_bytes = tokens * decoder_->kv_shape(kv_dtype_).bytes_per_token();
  info.eos_token_ids = decoder_->config().eos_token_ids;
  info.dtype = dtype_name(weight_dtype_);
  info.kv_cache_dtype = dtype_name(kv_dtype_);
  info.num_speculative_tokens = config_.num_speculative_tokens;
  if (draft_) {
    info.draft_weight_bytes = draft_->weights().num_bytes();
    info.kv_cache_bytes += tokens * draft_->kv_shape(kv_dtype_).bytes_per_token();
    info.capture_layers = draft_->config().capture_layers;
    info.capture_rule = draft_->config().capture_rule;
    info.draft_vocab_size = draft_->config().draft_vocab_size;
  }
  return info;
}

}  // namespace eagle31rt
