// The oracle of step(): the oldest request alone, its whole prompt in one pass, then one token a call; no drafts, no
// batch, no chunks. step() must give the same ids.
#include <iterator>
#include <utility>

#include "base/check.h"
#include "engine/commit.h"
#include "engine/engine_impl.h"
#include "engine/row_processors.h"
#include "ops/ops.h"

namespace eagle31rt {

std::vector<StepOutput> Engine::Impl::step_simple() {
  check_not_lost();
  expire();
  RequestState* oldest = scheduler_->schedule_alone();
  if (oldest == nullptr) return std::exchange(expired_, {});
  RequestState& request = *oldest;
  E31_CHECK(request.slot < 0, kInvalidArgument, "request ", request.id,
            " was begun by step(); step_simple() takes requests of its own");

  // Everything that has no KV yet: the prompt, later the newest token.
  ForwardBatch batch;
  batch.clear(static_cast<int32_t>(request.pages.size()));
  batch.add_request(std::span(request.tokens).subspan(static_cast<size_t>(request.num_computed)), request.pages,
                    config_.page_size, request.num_computed, /*first_visible_entry=*/0, /*position_offset=*/0);
  // Ids that min_tokens holds back from the new token.
  std::vector<int32_t> masked_ids;
  append_masked_ids(request, /*path=*/{}, masked_ids);
  // Rows with logits: the last, then those of the prompt that want log-probabilities.
  ScheduledRequest entry{.request = &request, .num_rows = static_cast<int32_t>(batch.num_rows()), .first_logit_row = 0};
  std::vector<int32_t> logit_rows{entry.num_rows - 1};
  for (int32_t row = 0; row < num_prompt_logprob_rows(entry); ++row) logit_rows.push_back(row);

  upload_.clear();
  const auto rows_at = upload_.add(batch);
  const auto logit_rows_at = upload_.add(logit_rows);
  const auto sampling_at = upload_.add(std::vector{sampling_row(request, request.length())});
  const auto masked_begin_at = upload_.add(std::vector{0, static_cast<int32_t>(masked_ids.size())});
  const auto masked_ids_at = upload_.add(masked_ids);
  const auto token_at = upload_.add(std::vector{-1});
  upload_.send();

  const int64_t vocab_size = decoder_->config().vocab_size;
  const auto num_logit_rows = static_cast<int64_t>(logit_rows.size());
  float* logits = logits_.get(num_logit_rows * vocab_size);
  decoder_->forward(upload_.at(rows_at), {.indices = upload_.at(logit_rows_at), .count = num_logit_rows},
                    {.logits = logits, .captured = nullptr}, target_kv_, context_);
  logprobs_.clear();
  logprobs_.add_output(entry, /*first_row=*/0);
  logprobs_.add_prompt(entry, /*first_row=*/1);
  logprobs_.keep(logits, vocab_size, context_);
  processors_.clear();
  processors_.add(request, no_drafts(), /*first_row=*/0, logits, vocab_size, entry.error);
  processors_.apply(logits, vocab_size, context_);
  auto* token_on_device = const_cast<int32_t*>(upload_.at(token_at));
  context_.ops.sample({.logits = logits,
                       .rows = upload_.at(sampling_at),
                       .masked_begin = upload_.at(masked_begin_at),
                       .masked_ids = upload_.at(masked_ids_at),
                       .token_ids = token_on_device,
                       .num_rows = 1,
                       .vocab_size = vocab_size,
                       .logits_stride = vocab_size},
                      context_);
  logprobs_.choose(token_on_device, context_);
  int32_t token = -1;
  device_.copy_to_host(&token, token_on_device, sizeof(token));
  device_.synchronize();
  if (token < 0) entry.num_accepted = -1;
  logprobs_.take();
  std::vector<StepOutput> outputs = commit({&entry, 1}, &token);
  scheduler_->finish_step();
  outputs.insert(outputs.end(), std::move_iterator(expired_.begin()), std::move_iterator(expired_.end()));
  expired_.clear();
  return outputs;
}

}  // namespace eagle31rt
