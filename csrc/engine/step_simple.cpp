// The oracle of step(): the oldest request alone, its whole prompt in one pass, then one token a call; no drafts, no
// batch, no chunks. step() must give the same ids.
#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"
#include "ops/ops.h"

namespace eagle31rt {

std::vector<StepOutput> Engine::Impl::step_simple() {
  admit(/*with_drafter=*/false);
  if (running_.empty()) return {};
  RequestState& request = *running_.front();
  E31_CHECK(request.slot < 0, kInvalidArgument, "request ", request.id,
            " was begun by step(); step_simple() takes requests of its own");

  // Everything that has no KV yet: the prompt, later the newest token.
  ForwardBatch batch;
  batch.clear(static_cast<int32_t>(request.pages.size()));
  batch.add_request(std::span(request.tokens).subspan(static_cast<size_t>(request.num_computed)), request.pages,
                    config_.page_size, request.num_computed, /*first_visible_entry=*/0, /*position_offset=*/0);
  const int32_t last_row = static_cast<int32_t>(batch.num_rows()) - 1;
  float* logits = logits_.get(decoder_->config().vocab_size);
  decoder_->forward(batch, {&last_row, 1}, {.logits = logits, .captured = nullptr}, *target_kv_, context_);
  request.num_computed = request.length();

  const SamplingParams& params = request.params;
  const SamplingRow row{.temperature = params.temperature,
                        .top_k = params.top_k,
                        .top_p = params.top_p,
                        .min_p = params.min_p,
                        .seed = params.seed,
                        .position = request.length()};
  const bool delayed = request.num_output_tokens() < params.min_tokens;
  const int32_t masked_begin[2] = {0, delayed ? static_cast<int32_t>(request.delayed_token_ids.size()) : 0};
  int32_t token = -1;
  context_.ops.sample({.logits = logits,
                       .rows = &row,
                       .masked_begin = masked_begin,
                       .masked_ids = request.delayed_token_ids.data(),
                       .token_ids = &token,
                       .num_rows = 1,
                       .vocab_size = decoder_->config().vocab_size,
                       .logits_stride = decoder_->config().vocab_size},
                      context_);

  std::vector<StepOutput> outputs(1);
  if (token < 0) {
    commit_error(request, no_finite_logit(request), outputs[0]);
  } else {
    commit_run(request, {&token, 1}, /*num_drafts=*/0, outputs[0]);
  }
  retire_finished();
  return outputs;
}

}  // namespace eagle31rt
