// Building an engine: checkpoints, capture layers, lengths, KV pages.
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "device/cpu/available_memory.h"
#include "engine/config_check.h"
#include "engine/engine_impl.h"
#include "model/checkpoint.h"
#include "model/config_checks.h"
#include "model/draft_checks.h"
#include "ops/cuda_backend.h"
#include "ops/ops.h"
#include "spec/chain_drafter.h"
#include "spec/tree_drafter.h"

namespace eagle31rt {

namespace {

DType chosen_dtype(const std::string& name, DType automatic) {
  return name == "auto" ? automatic : parse_floating_point_dtype(name);
}

std::string name_of(const std::string& device_setting, const Device& device) {
  const int32_t index = parse_device(device_setting);
  return index < 0 ? "cpu" : concat("cuda:", index, " (", device.info().name, ")");
}

}  // namespace

Backend open_backend(const EngineConfig& config) {
  check_engine_config(config);
  const int32_t index = parse_device(config.device);
  if (index < 0) return {nullptr, &cpu_device(), &cpu_ops()};
  const CudaBackend& backend = cuda_backend();
  std::unique_ptr<Device> device = backend.open_device(index);
  Device* opened = device.get();
  return {std::move(device), opened, backend.ops};
}

Engine::Impl::Impl(const EngineConfig& config, Backend backend)
    : config_(config),
      method_(parse_verify_method(config.rejection_sample_method)),
      tree_shape_(draft_tree_shape(config)),
      owned_device_(std::move(backend.owned)),
      device_(*backend.device),
      device_name_(name_of(config.device, device_)),
      pool_(config.num_threads),
      context_{pool_, *backend.ops, config.profile && device_.is_host() ? &profiler_ : nullptr,
               device_.is_host() ? nullptr : &device_},
      draft_context_{pool_, *backend.ops, nullptr, context_.device},
      logits_(device_),
      captured_(device_),
      kept_(device_),
      upload_(device_),
      processors_(device_, method_ == VerifyMethod::kSynthetic),
      logprobs_(device_) {
  load_models();
  make_step_loop();
  make_pages();
  make_feature_ring();
  make_scheduler();
}

void Engine::Impl::load_models() {
  const DecoderConfig target_config = read_decoder_config(config_.model);
  // The draft's config decides what the target captures, and a wrong draft should be refused before weights are read.
  std::optional<DraftConfig> draft_config;
  if (!config_.draft.empty()) {
    Findings findings;
    check_draft_is_not_target(config_.model, config_.draft, findings);
    draft_config = read_draft_config(config_.draft, target_config, draft_overrides());
    check_draft_weights(Checkpoint::open(config_.draft), *draft_config, findings);
  }
  max_model_len_ = serving_length(config_.max_model_len, target_config);
  weight_dtype_ = chosen_dtype(config_.dtype, target_config.dtype);
  kv_dtype_ = chosen_dtype(config_.kv_cache_dtype, weight_dtype_);
  DecoderWeights target_weights =
      load_decoder_weights(Checkpoint::open(config_.model), target_config, weight_dtype_, device_);
  decoder_ = std::make_unique<Decoder>(target_config, std::move(target_weights),
                                       draft_config ? draft_config->capture_layers : std::vector<int32_t>(), device_,
                                       max_model_len_);
  if (draft_config) draft_ = load_draft(config_.draft, *draft_config);
}

DraftOverrides Engine::Impl::draft_overrides() const {
  return {config_.capture_layers, config_.layer_id_convention, config_.feedback};
}

DraftConfig Engine::Impl::read_draft_config(const std::string& directory, const DecoderConfig& target,
                                            const DraftOverrides& overrides) {
  const std::string path = directory + "/config.json";
  return parse_draft_config(read_text_file(path), target, overrides, path);
}

std::unique_ptr<EagleDraft> Engine::Impl::load_draft(const std::string& directory, const DraftConfig& config) const {
  DraftWeights weights =
      load_draft_weights(Checkpoint::open(directory), config, decoder_->config(), weight_dtype_, device_);
  return std::make_unique<EagleDraft>(config, std::move(weights), *decoder_, device_, max_model_len_);
}

void Engine::Impl::make_step_loop() {
  if (config_.decode_state == "device" || !device_.is_host()) {
    runner_ = make_runner(draft_.get());
  } else if (draft_) {
    drafter_ = make_drafter(*draft_);
  }
}

std::unique_ptr<DeviceRunner> Engine::Impl::make_runner(EagleDraft* draft) {
  const DeviceModels models{*decoder_, target_kv_, draft, draft != nullptr ? &draft_kv_ : nullptr, context_, device_};
  return std::make_unique<DeviceRunner>(models,
                                        DeviceStepConfig{.max_num_seqs = config_.max_num_seqs,
                                                         .page_size = config_.page_size,
                                                         .max_model_len = max_model_len_,
                                                         .max_drafts = config_.num_speculative_tokens,
                                                         .max_prompt_rows = config_.max_num_batched_tokens,
                                                         .method = method_,
                                                         .draw_drafts = config_.draft_sample_method == "probabilistic",
                                                         .rates = conditional_rates(config_.synthetic_acceptance_rates),
                                                         .use_graphs = device_.has_graphs() && !config_.enforce_eager});
}

std::unique_ptr<Drafter> Engine::Impl::make_drafter(EagleDraft& draft) {
  const int32_t num_slots = config_.max_num_seqs, page_size = config_.page_size;
  const bool draw = config_.draft_sample_method == "probabilistic";
  if (!tree_shape_.is_chain()) {
    const TreeDrafter::Config config{.num_slots = num_slots, .page_size = page_size, .draw = draw};
    return std::make_unique<TreeDrafter>(draft, draft_kv_, config, tree_shape_);
  }
  const ChainDrafter::Config config{.num_slots = num_slots, .page_size = page_size, .draw = draw};
  return std::make_unique<ChainDrafter>(draft, draft_kv_, config);
}

void Engine::Impl::make_scheduler() {
  const Scheduler::Config config{.max_num_seqs = config_.max_num_seqs,
                                 .max_num_batched_tokens = config_.max_num_batched_tokens,
                                 .has_draft = draft_ != nullptr,
                                 .tree = tree_shape_,
                                 .enable_prefix_caching = config_.enable_prefix_caching,
                                 .features = features_.get()};
  Scheduler::Hooks hooks;
  hooks.leave = [this](const RequestState& request) {
    if (drafter_ && request.is_drafting) drafter_->release(request.slot);
  };
  hooks.copy_draft_page = [this](int32_t from, int32_t to) { draft_kv_.copy_page(from, to, device_); };
  if (draft_ && config_.speculation_policy == "auto") {
    const bool equal_lengths = runner_ != nullptr;
    controller_ = std::make_unique<SpeculationController>(config_.num_speculative_tokens, equal_lengths);
  }
  scheduler_ = std::make_unique<Scheduler>(config, *page_pool_, std::move(hooks));
}

// What the KV cache may take if nothing is said: everything else of the engine is allocated by now. 0: no limit known.
int64_t Engine::Impl::available_kv_bytes() const {
  if (device_.is_host()) return available_memory_bytes() / 4;
  const DeviceInfo info = device_.info();
  const double budget = config_.gpu_memory_utilization * static_cast<double>(info.total_memory);
  const int64_t left = static_cast<int64_t>(budget) - (info.total_memory - info.free_memory);
  E31_CHECK(left > 0, kResource, "no memory is left for the KV cache: ", info.total_memory - info.free_memory, " of ",
            info.total_memory, " bytes are in use on ", info.name, " and gpu_memory_utilization is ",
            config_.gpu_memory_utilization, "; raise it, lower max_num_seqs, num_speculative_tokens or ",
            "max_num_batched_tokens, or free GPU memory");
  return left;
}

void Engine::Impl::make_pages() {
  const KvShape target_shape = decoder_->kv_shape(kv_dtype_);
  int64_t bytes_per_page = target_shape.bytes_per_token() * config_.page_size;
  if (draft_) bytes_per_page += draft_->kv_shape(kv_dtype_).bytes_per_token() * config_.page_size;

  const int64_t pages_per_sequence = (max_model_len_ + config_.page_size - 1) / config_.page_size;
  int64_t num_pages = pages_per_sequence * config_.max_num_seqs;
  if (config_.kv_cache_memory_bytes > 0) {
    num_pages = std::min(num_pages, config_.kv_cache_memory_bytes / bytes_per_page);
  } else if (const int64_t available = available_kv_bytes(); available > 0) {
    num_pages = std::min(num_pages, available / bytes_per_page);
  }
  E31_CHECK(num_pages >= 1, kInvalidArgument, "kv_cache_memory_bytes gives ", num_pages, " pages of ", bytes_per_page,
            " bytes; give room for at least one page");
  num_pages = std::min<int64_t>(num_pages, INT32_MAX);

  page_pool_ = std::make_unique<PagePool>(num_pages, config_.page_size);
  target_kv_ = KvStorage(target_shape, num_pages, config_.page_size, device_);
  if (draft_) draft_kv_ = KvStorage(draft_->kv_shape(kv_dtype_), num_pages, config_.page_size, device_);
}

EngineInfo Engine::Impl::info() const {
  const int64_t tokens = page_pool_->num_pages() * config_.page_size;
  EngineInfo info;
  info.device = device_name_;
  info.instruction_set = context_.ops.name;
  info.num_threads = pool_.num_threads();
  info.vocab_size = decoder_->config().vocab_size;
  info.max_model_len = max_model_len_;
  info.page_size = config_.page_size;
  info.num_pages = page_pool_->num_pages();
  info.num_free_pages = page_pool_->num_available();
  info.weight_bytes = decoder_->weights().num_bytes();
  info.target_kv_bytes = tokens * decoder_->kv_shape(kv_dtype_).bytes_per_token();
  info.eos_token_ids = decoder_->config().eos_token_ids;
  info.dtype = dtype_name(weight_dtype_);
  info.kv_cache_dtype = dtype_name(kv_dtype_);
  info.num_speculative_tokens = config_.num_speculative_tokens;
  if (draft_) {
    info.draft_weight_bytes = draft_->weights().num_bytes();
    info.draft_kv_bytes = tokens * draft_->kv_shape(kv_dtype_).bytes_per_token();
    info.capture_layers = draft_->config().capture_layers;
    info.capture_rule = draft_->config().capture_rule;
    info.draft_vocab_size = draft_->config().draft_vocab_size;
  }
  info.kv_cache_bytes = info.target_kv_bytes + info.draft_kv_bytes;
  const int64_t logit_rows = int64_t{config_.max_num_seqs} * (config_.num_speculative_tokens + 1);
  info.logits_bytes = logit_rows * decoder_->config().vocab_size * static_cast<int64_t>(sizeof(float));
  return info;
}

}  // namespace eagle31rt
