// What the ids of one request must spell: structured output. Embedders implement it too.
//
// The engine keeps one state, after the tokens that were emitted. To verify drafts it advances over those that the
// masks allow and rolls back at once; then it advances over what was emitted. A token that ends the request
// (end-of-sequence, a stop id) is not shown to the constraint.
//
// Called from the thread that runs the step, for one request at a time. An exception, a mask without any id, or a
// refusal of an id that the mask allowed ends that request with FinishReason::kError and harms nobody else.
#pragma once

#include <cstdint>
#include <span>

namespace eagle31rt {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Which ids may come next: bit i % 32 of word i / 32 stands for id i. `allowed` has (vocab_size + 31) / 32 words, all
  // zero; bits past vocab_size are ignored. End-of-sequence is allowed by its own bit, where the text may end.
  virtual void fill_mask(std::span<uint32_t> allowed) = 0;

  // Advances over one token. False: refused, and the state is unchanged.
  virtual bool accept(int32_t token_id) = 0;

  // Takes back the last num_tokens accepted ones: 1 .. 64, never more than were accepted.
  virtual void roll_back(int32_t num_tokens) = 0;

  // Only end-of-sequence may follow. The request then ends with FinishReason::kStop.
  virtual bool is_finished() const = 0;
};

}  // namespace eagle31rt
