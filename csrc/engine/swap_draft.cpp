// Another draft for an engine that runs.
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "model/draft_checks.h"

namespace eagle31rt {

// The overrides were given for the first draft. Another one may need them as well, where its file is silent or not
// clear (parsing it without them fails), but they must not make a clear file mean something else.
void Engine::Impl::check_overrides_fit(const std::string& directory, const DraftConfig& config) const {
  std::optional<DraftConfig> as_the_file_says;
  try {
    as_the_file_says = read_draft_config(directory, decoder_->config(), {});
  } catch (const Error&) {
    return;
  }
  E31_CHECK(
      as_the_file_says->capture_layers == config.capture_layers && as_the_file_says->norm_output == config.norm_output,
      kInvalidArgument, directory, ": capture_layers, layer_id_convention or feedback, which the engine was made ",
      "with for its first draft, contradict the config of this one; make a new engine for it");
}

// Everything that can fail comes first, then the old parts are exchanged for the new ones. While both are there memory
// holds two drafts and two draft caches.
void Engine::Impl::swap_draft(const std::string& directory) {
  check_not_lost();
  E31_CHECK(draft_ != nullptr, kInvalidArgument,
            "the engine was made without a draft; name one when it is made, so that the target keeps its features");
  Findings findings;
  check_draft_is_not_target(config_.model, directory, findings);
  const DraftConfig config = read_draft_config(directory, decoder_->config(), draft_overrides());
  check_overrides_fit(directory, config);
  std::unique_ptr<EagleDraft> draft = load_draft(directory, config);
  KvStorage kv(draft->kv_shape(kv_dtype_), page_pool_->num_pages(), config_.page_size, device_);
  const std::vector<int32_t> old_layers = decoder_->capture_layers();
  decoder_->set_capture_layers(config.capture_layers);  // a runner's memory depends on it
  try {
    if (runner_) runner_ = make_runner(draft.get());
    if (drafter_) drafter_ = make_drafter(*draft);
  } catch (...) {
    decoder_->set_capture_layers(old_layers);
    throw;
  }
  draft_ = std::move(draft);
  if (controller_) controller_->forget_acceptance();
  draft_kv_ = std::move(kv);
  config_.draft = directory;
  page_pool_->cache().clear_draft_valid();
  make_feature_ring();
  scheduler_->restart_drafting(features_.get());
  for (const auto& request : scheduler_->running()) {
    if (request->slot < 0) continue;
    if (runner_) runner_->enter(*request);
    if (drafter_) begin_drafting(*request);
  }
}

}  // namespace eagle31rt
