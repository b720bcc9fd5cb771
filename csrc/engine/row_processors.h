// What a request's parameters do to the rows from which its tokens are drawn; the order is in sampling_params.h. One
// place for the batched step, its form on a device, and the oracle:
//
//   processors.clear();
//   for each request: processors.add(...)    once its logits are computed or on their way, and its drafts are known
//   processors.apply(...)                    before the rows are sampled
//
// A row behind drafts has the law that plain decoding would have there, so its history is the request's and the drafts
// before it (batch_correctness 3.6).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/execution_context.h"
#include "engine/request_state.h"
#include "engine/upload_buffer.h"
#include "ops/process_logits/process_logits.h"
#include "spec/draft_tree.h"

namespace eagle31rt {

// True if logits must be looked at with the history of their row: everything but min_tokens.
bool processes_logits(const SamplingParams& params);
// Bit i % 32 of word i / 32 for every id in `ids`; empty for none.
std::vector<uint32_t> make_mask(std::span<const int32_t> ids, int64_t vocab_size);
// Appends the ids that min_tokens and bad_words ban from the row behind the drafts `path`. Ids may repeat.
void append_masked_ids(const RequestState& request, std::span<const int32_t> path, std::vector<int32_t>& ids);

class RowProcessors {
 public:
  // Of logits in the memory of `device`. tells_refusals: verification stops at a draft that a mask excludes only if it
  // is told to (kSynthetic); every other method refuses it by its probability of 0.
  RowProcessors(Device& device, bool tells_refusals);

  void clear();
  // Row r of `drafts` is row first_row + r of `logits` [any, vocab_size]: it verifies what follows its path. Returns
  // the rows whose drafts must not stand, until the next call. If the request fails by its own fault before any draft,
  // `error` says why.
  std::span<const int32_t> add(RequestState& request, const DraftTreeView& drafts, int64_t first_row, float* logits,
                               int64_t vocab_size, std::string& error);
  // The rows that were added.
  void apply(float* logits, int64_t vocab_size, ExecutionContext& context);

 private:
  struct Path;
  enum class After { kGoOn, kRefused, kEnded };
  void add_shared(Path& path);
  void add_rows(Path& path, std::string& error);
  void add_row(Path& path, int32_t row);
  void add_path(Path& path);
  int32_t add_mask(const Path& path);
  void run_custom(Path& path, int32_t row);
  void refuse_from(const Path& path, int32_t row);
  After step(Path& path, int32_t row);
  After advance(Path& path, int32_t mask_begin, int32_t draft) const;
  static void roll_back(Path& path, size_t depth);

  Device& device_;
  bool tells_refusals_;
  std::vector<ProcessRow> rows_;
  std::vector<int32_t> row_indices_, path_ids_, banned_;
  std::vector<int32_t> mask_begin_;  // [rows of the request] of those that were added; -1: none
  std::vector<int32_t> refused_;
  std::vector<TokenCount> history_;
  std::vector<TokenBias> biases_;
  std::vector<uint32_t> masks_;
  std::vector<float> host_row_;
  UploadBuffer upload_;
};

}  // namespace eagle31rt
