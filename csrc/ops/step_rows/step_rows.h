// The rows of a decode step, made where the requests' state lies, so that drafting, verifying and observing need no
// number from the host in between.
//
// A batch has num_requests requests, each with a slot of the state, or slot -1: padding, which comes behind all others.
// Request i verifies num_drafts[i] drafts and owns the R = rows_per_request rows i * R .. i * R + R - 1 of a pass (one
// row in kDraft). A row that has nothing to do is inert: token 0 at position 0 that writes no KV. Padding owns no rows;
// those at its place are inert.
//
// With L = length[slot], tokens 0 .. L - 1 are committed, the newest has no KV yet, and the draft has observed
// positions 0 .. L - 2; its entry p + 1 pairs the feature of position p with the token of p + 1 (model/eagle_draft.h).
//
//   kDraft   before step s of the drafter. Keeps what the head drew in step s - 1 as draft s - 1. If s < num_drafts[i],
//            row i feeds it as entry L - 1 + s (s > 0) and draws draft s for position L + s.
//   kVerify  keeps the last draft. Row j feeds the newest token (j = 0) or draft j - 1 as entry L - 1 + j; its logits
//            are the law of position L + j.
//   kCommit  L += accepted + 1 and the newest token, unless num_accepted is -1; results. If the draft follows the
//            request, row j <= accepted feeds emitted token j as the draft's entry L + j (L as it was).
//
// A row writes no KV entry from max_entries[slot] on: those pages are somebody else's.
#pragma once

#include <cstdint>

#include "ops/sample/sample.h"

namespace eagle31rt {

enum class StepRowsMode : uint8_t { kDraft, kVerify, kCommit };

// What a device knows of the running requests, one entry for each slot.
struct DecodeState {
  int32_t* length;             // [num_slots] committed tokens, 1 or more
  int32_t* last_token;         // [num_slots]
  const int32_t* max_entries;  // [num_slots] KV entries that the request may write
  // [num_slots] the first KV entry that the request's draft sees, 1 or more (entry 0 holds nothing); 0: it has none
  const int32_t* first_draft_entry;
  const SamplingRow* sampling;  // [num_slots]; the position is not used
  int64_t num_slots;
};

// Arrays of the pass that comes next.
struct StepRowArrays {
  int32_t* token_ids;       // [num_requests * R]
  int32_t* positions;       // [num_requests * R]
  int64_t* slots;           // [num_requests * R] KV slots
  int32_t* row_begin;       // [num_requests + 1]
  int32_t* kv_begin;        // [num_requests]
  int32_t* kv_length;       // [num_requests]
  SamplingRow* sampling;    // [num_requests * R]; not written by kCommit
  float* acceptance_rates;  // [num_requests * R] or null; kVerify only
};

struct StepRowsParams {
  StepRowsMode mode;
  DecodeState state;
  StepRowArrays rows;            // kCommit: rows.token_ids is null where no draft follows
  const int32_t* request_slots;  // [num_requests]
  const int32_t* num_drafts;     // [num_requests] 0 .. R - 1
  const int32_t* page_table;     // [num_requests, page_table_stride], in the order of the batch
  int64_t num_requests;
  int32_t rows_per_request;  // R
  int32_t page_table_stride;
  int32_t page_size;
  int32_t draft_step;              // kDraft
  bool draw_drafts;                // kDraft: at the request's temperature; else the most probable
  const int32_t* drawn_ids;        // [num_requests] draft ids of the step before; -1 (no finite logit) counts as 0
  const int32_t* draft_to_target;  // [draft vocabulary] or null: identity
  int32_t* draft_token_ids;        // [num_requests * R] target ids; draft s of request i at i * R + s + 1, -1 behind
  const float* rates;              // [R - 1] for rows.acceptance_rates
  // kCommit
  const int32_t* num_accepted;       // [num_requests] of verify_chain
  const int32_t* emitted_token_ids;  // [num_requests * R] of verify_chain
  int32_t* results;                  // [num_requests, R + 1] num_accepted, then what was emitted, then -1
  const int32_t* request_of_slot;    // [num_slots] or null; -1: not in the batch
  int32_t* last_rows;                // [num_slots] the last row that observes, of requests in the batch, else -1
};

}  // namespace eagle31rt
