// One row per task. Only ids that the row names are touched; the mask is one pass over its words, which skips those
// that allow everything.
#include "device/execution_context.h"
#include "ops/process_logits/logit_rules.h"

#ifndef E31_ISA
#error "compile this file as part of an instruction-set variant (E31_ISA)"
#endif

namespace eagle31rt::E31_ISA {

namespace {

constexpr int kWordBits = 32;

void forbid(uint32_t allowed, int count, float* logits) {
  for (int i = 0; i < count; ++i) {
    logits[i] = ((allowed >> i) & 1u) != 0 ? logits[i] : -std::numeric_limits<float>::infinity();
  }
}

void apply_mask(const uint32_t* words, int64_t vocab_size, float* logits) {
  const int64_t num_whole = vocab_size / kWordBits;
  for (int64_t word = 0; word < num_whole; ++word) {
    if (words[word] != 0xffffffffu) forbid(words[word], kWordBits, logits + word * kWordBits);
  }
  const int rest = static_cast<int>(vocab_size % kWordBits);
  if (rest > 0) forbid(words[num_whole], rest, logits + num_whole * kWordBits);
}

void process_row(const ProcessLogitsParams& params, int64_t index) {
  const ProcessRow& row = params.rows[index];
  float* logits = params.logits + params.row_indices[index] * params.logits_stride;
  if (row.mask_begin >= 0) apply_mask(params.masks + row.mask_begin, params.vocab_size, logits);
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) logit_rules::add_bias(params, params.biases[i], logits);
  uint64_t in_history = 0;
  for (int32_t i = row.history_begin; i < row.history_end; ++i) {
    in_history |= logit_rules::penalize_seen(params, row, params.history[i], logits);
  }
  for (int32_t place = 0; place < row.path_end - row.path_begin; ++place) {
    logit_rules::penalize_draft(params, row, place, in_history, logits);
  }
}

}  // namespace

void process_logits(const ProcessLogitsParams& params, ExecutionContext& context) {
  auto row = [&](int64_t index, int) { process_row(params, index); };
  context.pool.parallel_for(params.num_rows, row);
}

}  // namespace eagle31rt::E31_ISA
