// The life of a request, and the public face of the engine.
#include "eagle31rt/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace eagle31rt {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

namespace {

void set_deadline(RequestState& request, double timeout_seconds) {
  if (timeout_seconds == 0) return;
  constexpr double kLongest = 1e9;  // 30 years: more would overflow the clock
  const std::chrono::duration<double> timeout(std::min(timeout_seconds, kLongest));
  request.timeout_seconds = timeout_seconds;
  request.deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(timeout);
}

}  // namespace

int32_t Engine::Impl::length_limit(std::span<const int32_t> prompt, const SamplingParams& params) const {
  return static_cast<int32_t>(
      std::min<int64_t>(max_model_len_, static_cast<int64_t>(prompt.size()) + params.max_tokens));
}

// Reads only what never changes after loading, since any thread may call it.
void Engine::Impl::check_request(std::span<const int32_t> prompt, const SamplingParams& params,
                                 const RequestOptions& options) const {
  const int32_t vocab_size = decoder_->config().vocab_size;
  check_sampling_params(params, vocab_size);
  E31_CHECK(params.stop.empty() || token_table_, kUnsupported,
            "stop strings need to know what the token ids say, and the engine has no token table; use stop_token_ids");
  E31_CHECK(!params.include_stop_str_in_output || token_table_, kUnsupported,
            "include_stop_str_in_output needs a token table, and the engine has none; leave it at false");
  E31_CHECK(std::isfinite(options.timeout_seconds) && options.timeout_seconds >= 0, kInvalidArgument,
            "timeout_seconds is ", options.timeout_seconds, "; give 0 (none) or a positive number");
  E31_CHECK(!prompt.empty(), kInvalidArgument, "the prompt is empty; give at least one token");
  E31_CHECK(static_cast<int64_t>(prompt.size()) < max_model_len_, kInvalidArgument, "the prompt has ", prompt.size(),
            " tokens; with max_model_len ", max_model_len_, " it may have at most ", max_model_len_ - 1);
  for (size_t i = 0; i < prompt.size(); ++i) {
    E31_CHECK(prompt[i] >= 0 && prompt[i] < vocab_size, kInvalidArgument, "token ", i, " of the prompt is ", prompt[i],
              ", which is outside the vocabulary of ", vocab_size, " ids");
  }
  E31_CHECK(params.num_speculative_tokens <= config_.num_speculative_tokens, kInvalidArgument,
            "num_speculative_tokens is ", params.num_speculative_tokens, "; the engine was built for at most ",
            config_.num_speculative_tokens);
  const int64_t pages = page_pool_->pages_for(length_limit(prompt, params) - 1);  // the last token is never fed
  E31_CHECK(pages <= page_pool_->num_pages(), kInvalidArgument, "the request may need ", pages, " KV pages of ",
            config_.page_size, " tokens and the engine has ", page_pool_->num_pages(),
            "; lower max_tokens or give more kv_cache_memory_bytes");
}

void Engine::Impl::add_request(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
                               const RequestOptions& options) {
  check_not_lost();
  check_request(prompt, params, options);
  E31_CHECK(!scheduler_->contains(request_id), kInvalidArgument, "request_id ", request_id, " is in use");
  auto request = std::make_unique<RequestState>();
  request->id = request_id;
  request->tokens.assign(prompt.begin(), prompt.end());
  request->prompt_length = static_cast<int32_t>(prompt.size());
  request->length_limit = length_limit(prompt, params);
  request->params = params;
  request->end_token_ids = params.stop_token_ids;
  request->delayed_token_ids = params.stop_token_ids;
  const std::vector<int32_t>& eos = decoder_->config().eos_token_ids;
  request->delayed_token_ids.insert(request->delayed_token_ids.end(), eos.begin(), eos.end());
  if (!params.ignore_eos) request->end_token_ids.insert(request->end_token_ids.end(), eos.begin(), eos.end());
  if (token_table_ && params.detokenize) request->text = std::make_unique<RequestText>(token_table_, params);
  request->num_speculative_tokens =
      params.num_speculative_tokens < 0 ? config_.num_speculative_tokens : params.num_speculative_tokens;
  request->allowed_mask = make_mask(params.allowed_token_ids, decoder_->config().vocab_size);
  if (params.num_prompt_logprobs >= 0) {
    request->prompt_logprobs.resize(prompt.size());
    request->prompt_logprobs[0].token_id = prompt[0];
  }
  const int32_t depth = std::min(request->num_speculative_tokens, tree_shape_.depth);
  request->metrics.num_accepted_tokens_per_position.assign(static_cast<size_t>(depth), 0);
  request->priority = options.priority;
  set_deadline(*request, options.timeout_seconds);
  scheduler_->add(std::move(request));
}

void Engine::Impl::set_token_table(TokenTable table) {
  check_token_table(table);
  E31_CHECK(!has_unfinished_requests(), kInvalidArgument,
            "the engine has requests; set the token table before the first");
  token_table_ = std::make_shared<const TokenTable>(std::move(table));
}

bool Engine::Impl::cancel(int64_t request_id) {
  if (controller_) controller_->forget(request_id);
  return scheduler_->cancel(request_id);
}

void Engine::Impl::check() const {
  scheduler_->check();
  if (!drafter_) return;
  for (const auto& request : scheduler_->running()) {
    if (request->is_drafting) E31_INVARIANT(drafter_->num_observed(request->slot) == request->num_observed);
  }
}

EngineStats Engine::Impl::stats() const {
  EngineStats stats = totals_;
  scheduler_->add_stats(stats);
  return stats;
}

EngineProfile Engine::Impl::take_profile() {
  const auto time_of = [&](Work work) { return profiler_.nanoseconds[static_cast<size_t>(work)]; };
  EngineProfile profile = profile_;
  profile.linear = time_of(Work::kLinear);
  profile.attention = time_of(Work::kAttention);
  profile.logits = time_of(Work::kLogits);
  profile.draft = time_of(Work::kDraft);
  profile.other = profile.step - profile.linear - profile.attention - profile.logits - profile.draft;
  if (profiler_of_passes() != nullptr) {
    profile.scheduling = profile.step - passes_.nanoseconds[static_cast<size_t>(Work::kOther)];
  }
  profile_ = {};
  profiler_ = passes_ = {};
  return profile;
}

// Refuses what would otherwise hang: two threads in one engine, and a child process whose worker threads stayed in its
// parent.
class Engine::Impl::Use {
 public:
  explicit Use(Impl& impl) : impl_(impl) {
    E31_CHECK(impl.process_ == getpid(), kInvalidArgument,
              "the engine belongs to the process that made it; make one in the child after fork");
    E31_CHECK(!impl.in_use_.exchange(true), kInvalidArgument,
              "the engine is in use by another thread; call it from one thread at a time");
    impl.device_.make_current();
  }
  ~Use() { impl_.in_use_.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Impl& impl_;
};

Engine::Engine(const EngineConfig& config) : impl_(std::make_unique<Impl>(config, open_backend(config))) {}
void EngineAccess::preempt(Engine& engine, int64_t request_id) { engine.impl_->preempt(request_id); }
void EngineAccess::limit_drafts(Engine& engine, int64_t request_id, int32_t max_drafts) {
  engine.impl_->limit_drafts(request_id, max_drafts);
}
Engine EngineAccess::make(const EngineConfig& config, Backend backend) {
  Engine engine;
  engine.impl_ = std::make_unique<Engine::Impl>(config, std::move(backend));
  return engine;
}

Engine::Engine() = default;
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

void Engine::add_request(int64_t request_id, std::span<const int32_t> prompt, const SamplingParams& params,
                         const RequestOptions& options) {
  const Impl::Use use(*impl_);
  impl_->add_request(request_id, prompt, params, options);
}
void Engine::check_request(std::span<const int32_t> prompt, const SamplingParams& params,
                           const RequestOptions& options) const {
  impl_->check_request(prompt, params, options);
}
void Engine::set_token_table(TokenTable table) {
  const Impl::Use use(*impl_);
  impl_->set_token_table(std::move(table));
}
bool Engine::cancel(int64_t request_id) {
  const Impl::Use use(*impl_);
  return impl_->cancel(request_id);
}
bool Engine::has_unfinished_requests() const { return impl_->has_unfinished_requests(); }
std::vector<StepOutput> Engine::step() {
  const Impl::Use use(*impl_);
  return impl_->step();
}
std::vector<StepOutput> Engine::step_simple() {
  const Impl::Use use(*impl_);
  return impl_->step_simple();
}
void Engine::check() const { impl_->check(); }
EngineInfo Engine::info() const { return impl_->info(); }
EngineStats Engine::stats() const { return impl_->stats(); }
void Engine::swap_draft(const std::string& directory) {
  const Impl::Use use(*impl_);
  impl_->swap_draft(directory);
}
EngineProfile Engine::take_profile() { return impl_->take_profile(); }

}  // namespace eagle31rt
