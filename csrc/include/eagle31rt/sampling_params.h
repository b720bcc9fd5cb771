// How one request is sampled and when it ends. Names and meaning are vLLM's.
//
// Every row from which a token may be drawn is processed with the history of its own path: the prompt, the output, and
// the drafts before the row. The order:
//
//   logits_processors                            on the model's logits, so that they cannot lift what is banned below
//   constraint, allowed_token_ids                all other ids: -inf
//   bad_words, min_tokens                        banned ids: -inf
//   logit_bias                                   added
//   repetition, frequency, presence penalty
//   temperature, min_p, top_k, top_p             ops/sample/sample.h
//
// This is vLLM's order, but for logits_processors, which vLLM runs between the masks and the penalties.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "eagle31rt/logits_processor.h"
#include "eagle31rt/token_bias.h"
#include "eagle31rt/token_constraint.h"

namespace eagle31rt {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy, ties to the lowest id
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  uint64_t seed = 0;         // the same seed gives the same ids, whatever else runs
  int32_t max_tokens = 16;   // 1 or more; also bounded by the engine's max_model_len
  int32_t min_tokens = 0;    // end-of-sequence and stop ids cannot be drawn before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  // UTF-8, at most 64 of 1 to 1024 bytes; the request ends with the token that completes one. Tokens up to min_tokens
  // can not end it so. They need an engine with a token table.
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;  // also the text of a stop token
  bool skip_special_tokens = true;          // they leave no text and match no stop string
  bool detokenize = true;                   // make text, if the engine has a token table
  int32_t num_speculative_tokens = -1;      // upper bound for this request; -1 = the engine's, 0 = plain decoding

  float repetition_penalty = 1.0f;    // above 0; divides positive logits of ids in prompt or output, multiplies others
  float frequency_penalty = 0.0f;     // [-2, 2]; subtracted once for each time that an id was output
  float presence_penalty = 0.0f;      // [-2, 2]; subtracted if an id was output
  std::vector<TokenBias> logit_bias;  // each id once
  std::vector<int32_t> allowed_token_ids;  // no other id can be drawn; empty = all
  // Sequences that must not be output: the last id of one is banned where the output, without the prompt, ends with the
  // ids before it.
  std::vector<std::vector<int32_t>> bad_words;

  // Log-probabilities of output tokens from the model's own logits, before anything of the above: -1 = none, 0 = of the
  // token itself, up to 64 = also of so many most probable ids.
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;  // the same for the tokens of the prompt

  std::shared_ptr<TokenConstraint> constraint;                      // of this request alone; null = none
  std::vector<std::shared_ptr<LogitsProcessor>> logits_processors;  // in order
};

// Throws Error(kInvalidArgument) naming the field.
void check_sampling_params(const SamplingParams& params, int32_t vocab_size);

}  // namespace eagle31rt
