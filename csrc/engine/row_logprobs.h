// Log-probabilities of a step's tokens and of the prompt's, from the model's own logits. Like row_processors.h it
// serves the batched step, its form on a device, and the oracle:
//
//   logprobs.clear();
//   for each request: logprobs.add_output(...) and add_prompt(...)
//   logprobs.keep(...)      once the logits are there, before anything changes them
//   logprobs.choose(...)    once the tokens are drawn
//   logprobs.take()         after the device has been waited for: results go to the requests' entries
#pragma once

#include <cstdint>
#include <vector>

#include "device/execution_context.h"
#include "engine/step_batch.h"
#include "engine/upload_buffer.h"
#include "model/scratch.h"

namespace eagle31rt {

// Rows of the entry whose next token is in the prompt and wants a log-probability: the first ones that it feeds.
int32_t num_prompt_logprob_rows(const ScheduledRequest& entry);

class RowLogprobs {
 public:
  // Of logits in the memory of `device`.
  explicit RowLogprobs(Device& device);

  void clear();
  bool empty() const { return groups_.empty(); }
  // The entry's tokens are drawn from rows first_row .. first_row + num_drafts of the logits; nothing if it wants none.
  void add_output(ScheduledRequest& entry, int64_t first_row);
  // Rows first_row .. first_row + num_prompt_logprob_rows(entry) - 1.
  void add_prompt(ScheduledRequest& entry, int64_t first_row);
  // logits [any, vocab_size].
  void keep(const float* logits, int64_t vocab_size, ExecutionContext& context);
  // emitted: in the memory of the device, the token that follows each row of logits of add_output(); -1: none.
  void choose(const int32_t* emitted, ExecutionContext& context);
  // Fills `logprobs` of the entries, for each token that stands, and `prompt_logprobs` of their requests.
  void take();

 private:
  struct Group {  // consecutive rows of one entry
    ScheduledRequest* entry;
    size_t begin, count;
    int32_t num_top;
    bool is_prompt;
  };
  void add(ScheduledRequest& entry, int64_t first_row, size_t count, int32_t num_top, bool is_prompt);
  TokenLogprobs result(size_t row, int32_t num_top) const;
  // Parts of results_ and host_results_: token ids, log-probabilities, ranks; then [rows, num_top_] ids,
  // log-probabilities, logits.
  size_t top_ids_at() const { return 3 * token_ids_.size(); }
  size_t top_logprobs_at() const { return top_ids_at() + token_ids_.size() * static_cast<size_t>(num_top_); }
  size_t top_values_at() const { return top_logprobs_at() + token_ids_.size() * static_cast<size_t>(num_top_); }

  Device& device_;
  std::vector<Group> groups_;
  std::vector<int32_t> rows_;          // of the logits
  std::vector<int32_t> token_ids_;     // where they are known; else -1
  std::vector<int32_t> emitted_rows_;  // where they are drawn; else -1
  int32_t num_top_ = 0;                // the most that a row wants
  int64_t vocab_size_ = 0;
  UploadBuffer upload_;
  Uploaded<int32_t> rows_at_, token_ids_at_, emitted_rows_at_;
  Scratch raw_, results_;  // raw_ [rows, vocab_size]
  HostBuffer host_results_;
};

}  // namespace eagle31rt
