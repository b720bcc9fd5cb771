// The engine: requests in, token ids out.
//
//   Engine engine(config);
//   engine.add_request(1, prompt_token_ids, params);
//   while (engine.has_unfinished_requests())
//     for (const StepOutput& output : engine.step()) use(output.new_token_ids);
//
// One thread at a time, in the process that made it; anything else is refused. With rejection_sample_method "equality"
// the ids of a request are those of plain decoding, bit for bit: at any batch, draft length, chunking of the prompt,
// and number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eagle31rt/config.h"
#include "eagle31rt/sampling_params.h"
#include "eagle31rt/token_table.h"

namespace eagle31rt {

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };

// "", "stop", "length", "abort", "error".
const char* finish_reason_name(FinishReason reason);

// Totals of one request. Definitions are vLLM's: acceptance_length = 1 + num_accepted_tokens / num_drafts, the rate of
// position i = num_accepted_tokens_per_position[i] / num_drafts (unconditional). Tokens that a stop cut off count
// neither as accepted nor as emitted.
struct SpeculationMetrics {
  int64_t num_drafts = 0;        // verify steps that had drafts
  int64_t num_draft_tokens = 0;  // drafts verified
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t> num_accepted_tokens_per_position;  // [num_speculative_tokens of the request, or tree depth]
};

// One token and the most probable ids at its place, by log softmax of the model's own logits: temperature 1, before
// every processor.
struct TokenLogprobs {
  int32_t token_id = -1;
  float logprob = 0.0f;
  int32_t rank = 0;              // 1 + number of ids with a larger logit; 0: no value (first token of a prompt)
  std::vector<int32_t> top_ids;  // descending, as many as were asked for and have a finite logit
  std::vector<float> top_logprobs;
};

struct RequestOptions {
  int32_t priority = 0;  // lower runs first; equal ones in order of arrival
  // Seconds from submission after which the request ends with "abort"; 0 = none. Tested before each step.
  double timeout_seconds = 0;
};

struct StepOutput {
  int64_t request_id = 0;
  std::vector<int32_t> new_token_ids;
  // What the ids so far complete and was not given before; UTF-8. Of an engine without a token table: empty. A
  // beginning of a stop string, or of a character, stays back until it is certain.
  std::string text;
  std::vector<TokenLogprobs> logprobs;         // one for each new token id, if num_logprobs asks for them
  std::vector<TokenLogprobs> prompt_logprobs;  // one for each prompt token, with the output in which the prompt ends
  FinishReason finish_reason = FinishReason::kNone;
  int32_t stop_token_id = -1;     // which id ended it, for kStop
  std::string stop_string;        // or which stop string; neither: the constraint was finished
  std::string error;              // why, for kError, and for kAbort by a deadline
  SpeculationMetrics metrics;     // totals so far
  int32_t num_cached_tokens = 0;  // prompt tokens that the prefix cache served
  double first_run_at = 0;        // when a step first took it in: seconds of std::chrono::steady_clock
};

struct EngineInfo {
  std::string device;           // "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string instruction_set;  // of the operators: "avx2", "cuda"
  int32_t num_threads = 0;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t page_size = 0;
  int64_t num_pages = 0;
  int64_t num_free_pages = 0;  // can be had without preempting anybody: unused, or kept for the prefix cache only
  int64_t weight_bytes = 0;
  int64_t draft_weight_bytes = 0;
  int64_t kv_cache_bytes = 0;  // reserved, target and draft; on the CPU a page becomes resident when it is first used
  int64_t target_kv_bytes = 0;
  int64_t draft_kv_bytes = 0;
  int64_t logits_bytes = 0;  // of the largest decode step
  std::vector<int32_t> eos_token_ids;
  std::vector<int32_t> capture_layers;  // canonical k
  std::string capture_rule;             // which rule resolved them
  std::string dtype, kv_cache_dtype;
  int32_t draft_vocab_size = 0;
  int32_t num_speculative_tokens = 0;
};

// What goes on now, and totals since the engine was made.
struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_preemptions = 0;  // total
  int64_t num_pages = 0;
  int64_t num_used_pages = 0;        // held by running requests
  int64_t num_cached_pages = 0;      // kept for the prefix cache only; the rest is free
  int64_t prefix_cache_queries = 0;  // total prompt tokens that were looked up
  int64_t prefix_cache_hits = 0;     // of these, served by the cache
  // Total time of steps in nanoseconds. A device is not waited for inside a step: there all is `verify`.
  int64_t draft_nanoseconds = 0;   // proposing, following and catching up with the target
  int64_t verify_nanoseconds = 0;  // the target's passes, prompts included
  int64_t sample_nanoseconds = 0;  // processing logits, sampling, verification
  int64_t host_nanoseconds = 0;    // all else
  // Steps with decoding requests, by why they had the drafts that they had (docs/speculation.md).
  int64_t num_fixed_steps = 0, num_no_draft_steps = 0, num_plain_steps = 0, num_best_steps = 0, num_probe_steps = 0,
          num_back_off_steps = 0;
};

// Wall time by kind of work since the last call, in nanoseconds; zero unless EngineConfig::profile. A GPU is not waited
// for inside a step, so there only whole steps are timed and count as `other`.
struct EngineProfile {
  int64_t num_steps = 0;
  int64_t step = 0;       // whole steps
  int64_t linear = 0;     // projections of the target
  int64_t attention = 0;  // KV append and attention of the target
  int64_t logits = 0;     // last norm, head, sampling and verification
  int64_t draft = 0;      // observing and proposing
  int64_t other = 0;      // step minus all of these
  // Step minus drafting, forward pass and verification as wholes: schedule, packing, commit, events, pages.
  int64_t scheduling = 0;
};

class Engine {
 public:
  // Loads target and draft. Throws Error: kCheckpoint, kUnsupported, kInvalidArgument, kResource, kDevice.
  explicit Engine(const EngineConfig& config);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // request_id: any number not in use. prompt: 1 .. max_model_len - 1 ids. Throws Error(kInvalidArgument) and leaves
  // every other request alone.
  void add_request(int64_t request_id, std::span<const int32_t> prompt_token_ids, const SamplingParams& params,
                   const RequestOptions& options = {});
  // Throws what add_request would, but for a request_id in use. Any thread may call it, also during a step.
  void check_request(std::span<const int32_t> prompt_token_ids, const SamplingParams& params,
                     const RequestOptions& options = {}) const;
  // What the ids say; from now on StepOutput::text is made and stop strings are matched. Before the first request.
  // Throws Error(kInvalidArgument) if the table is inconsistent or there are requests.
  void set_token_table(TokenTable table);
  // True if the request was there; it yields no further output.
  bool cancel(int64_t request_id);
  bool has_unfinished_requests() const;

  // One batched step: drafts, verifies and prefills. At most one output per request.
  // If a GPU fails in it, the requests of the step end with FinishReason::kError. Others go on, unless the GPU's state
  // is lost: then all requests end so, and every later call throws Error(kDevice).
  std::vector<StepOutput> step();
  // The oracle: no speculation, one sequence after the other, one token a call. Requests that step() has begun must not
  // be mixed in.
  std::vector<StepOutput> step_simple();

  // Replaces the draft between two steps; `directory` is read and checked as at loading, with the overrides of the
  // config, which must not contradict its file. Running requests go on with the same ids, and are drafted for from here
  // on. Throws Error (kCheckpoint, kUnsupported, kInvalidArgument: also if there was no draft, kResource) and keeps the
  // old draft.
  void swap_draft(const std::string& directory);

  // Throws Error(kInternal) if an invariant of requests, pages, prefix cache or draft state is broken.
  void check() const;
  EngineInfo info() const;
  EngineStats stats() const;
  EngineProfile take_profile();

 private:
  Engine();
  class Impl;
  friend struct EngineAccess;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eagle31rt
