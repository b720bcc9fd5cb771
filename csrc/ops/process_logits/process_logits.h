// What a request's sampling parameters do to its logits before sampling, in place and in vLLM's order:
//
//   mask        an id whose bit is not set gets -inf
//   bias        l += bias
//   repetition  l = l > 0 ? l / repetition : l * repetition, for ids seen in the prompt, the output or the path
//   frequency   l -= frequency * c
//   presence    l -= presence, for ids with c > 0
//
// c counts an id in the output and in the path: the drafts between the committed output and the row, so that a row
// that verifies a draft has the law that plain decoding would have there. NaN and -inf stay what they are. Everything
// else of the row is left alone, and penalties of 1, 0, 0 change no bit. Ids outside the vocabulary are ignored,
// wherever they stand.
#pragma once

#include <cstdint>

#include "eagle31rt/token_bias.h"

namespace eagle31rt {

constexpr int32_t kMaxPathLength = 64;

// One id of a request's prompt and committed output; each id once.
struct TokenCount {
  int32_t token_id;
  int32_t num_output;  // in the output
  int32_t in_prompt;   // 1: in the prompt too
};

struct ProcessRow {
  float repetition_penalty;  // above 0; 1 = off
  float frequency_penalty;   // 0 = off
  float presence_penalty;    // 0 = off
  int32_t history_begin, history_end;
  int32_t path_begin, path_end;  // at most kMaxPathLength ids, repeats possible
  int32_t bias_begin, bias_end;  // each id once
  int32_t mask_begin;            // the first of (vocab_size + 31) / 32 words of `masks`; -1: every id is allowed
};

struct ProcessLogitsParams {
  float* logits;               // [any, logits_stride] in place; lanes past vocab_size are not touched
  const ProcessRow* rows;      // [num_rows]
  const TokenCount* history;   // what history_begin and history_end index
  const int32_t* path_ids;     // likewise
  const TokenBias* biases;     // likewise
  const uint32_t* masks;       // bit id % 32 of word id / 32; bits past the vocabulary are not looked at
  const int32_t* row_indices;  // [num_rows] the row of logits of each ProcessRow, no two the same
  int64_t num_rows;
  int64_t vocab_size;
  int64_t logits_stride;  // elements between rows
};

}  // namespace eagle31rt
