// One request's share of step_rows, for CPU and CUDA alike. Static for the reason given in base/philox.h.
#pragma once

#include "base/host_device.h"
#include "ops/step_rows/step_rows.h"

namespace eagle31rt {

// Padding comes last, so the number of requests before the first padding is what row_begin needs.
E31_HOST_DEVICE static inline int32_t real_requests_before(const StepRowsParams& params, int64_t request) {
  while (request > 0 && params.request_slots[request - 1] < 0) --request;
  return static_cast<int32_t>(request);
}

E31_HOST_DEVICE static inline void make_row(const StepRowsParams& params, int64_t request, int64_t row, int32_t token,
                                            int32_t entry, int32_t position) {
  const int32_t slot = params.request_slots[request];
  params.rows.token_ids[row] = token;
  params.rows.positions[row] = position;
  const int32_t* pages = params.page_table + request * params.page_table_stride;
  params.rows.slots[row] = entry < params.state.max_entries[slot]
                               ? int64_t{pages[entry / params.page_size]} * params.page_size + entry % params.page_size
                               : -1;
}

E31_HOST_DEVICE static inline void make_inert_row(const StepRowsParams& params, int64_t row) {
  params.rows.token_ids[row] = 0;
  params.rows.positions[row] = 0;
  params.rows.slots[row] = -1;
}

E31_HOST_DEVICE static inline SamplingRow inert_sampling() { return {0.0f, 0, 1.0f, 0.0f, 0, 0}; }

// What attention needs of the request. rows: of each request in this pass.
E31_HOST_DEVICE static inline void make_extent(const StepRowsParams& params, int64_t request, int32_t rows,
                                               int32_t kv_begin, int32_t kv_length) {
  params.rows.kv_begin[request] = kv_begin;
  params.rows.kv_length[request] = kv_length;
  params.rows.row_begin[request] = real_requests_before(params, request) * rows;
  if (request + 1 == params.num_requests) {
    params.rows.row_begin[request + 1] = real_requests_before(params, request + 1) * rows;
  }
}

E31_HOST_DEVICE static inline int32_t target_of_drawn(const StepRowsParams& params, int64_t request) {
  const int32_t drawn = params.drawn_ids[request] < 0 ? 0 : params.drawn_ids[request];
  return params.draft_to_target == nullptr ? drawn : params.draft_to_target[drawn];
}

E31_HOST_DEVICE static inline void make_draft_row(const StepRowsParams& params, int64_t request) {
  const int32_t slot = params.request_slots[request], step = params.draft_step;
  const bool drew = slot >= 0 && step > 0 && step - 1 < params.num_drafts[request];
  const bool active = slot >= 0 && step < params.num_drafts[request];
  int32_t token = 0;
  if (drew) {
    token = target_of_drawn(params, request);
    params.draft_token_ids[request * params.rows_per_request + step] = token;
  }
  params.rows.sampling[request] = inert_sampling();
  if (active) {
    const SamplingRow& law = params.state.sampling[slot];
    SamplingRow& row = params.rows.sampling[request];
    row.temperature = params.draw_drafts ? law.temperature : 0.0f;
    row.seed = law.seed;
    row.position = int64_t{params.state.length[slot]} + step;
  }
  if (step == 0) return;  // drawn from the last observed state: nothing is fed
  const int32_t entry = active ? params.state.length[slot] - 1 + step : 0;
  if (active) {
    make_row(params, request, request, token, entry, entry - 1);
    make_extent(params, request, 1, params.state.first_draft_entry[slot], entry);
  } else {
    make_inert_row(params, request);
    make_extent(params, request, 1, 0, 0);
  }
}

// Row `place` of the request; every place may run by itself.
E31_HOST_DEVICE static inline void make_verify_row(const StepRowsParams& params, int64_t request, int32_t place) {
  const int32_t slot = params.request_slots[request];
  const int64_t first_row = request * params.rows_per_request, row = first_row + place;
  const int32_t num_drafts = slot < 0 ? -1 : params.num_drafts[request];
  if (place == 0)
    make_extent(params, request, params.rows_per_request, 0, slot < 0 ? 0 : params.state.length[slot] - 1);
  if (params.rows.acceptance_rates != nullptr) {
    params.rows.acceptance_rates[row] = place + 1 < params.rows_per_request ? params.rates[place] : 0.0f;
  }
  if (place > num_drafts) {
    params.draft_token_ids[row] = -1;
    params.rows.sampling[row] = inert_sampling();
    return make_inert_row(params, row);
  }
  const bool is_newest_draft = place == params.rows_per_request - 1 && place > 0;  // kDraft has kept the others
  if (is_newest_draft) params.draft_token_ids[row] = target_of_drawn(params, request);
  if (place == 0) params.draft_token_ids[row] = -1;
  const int32_t length = params.state.length[slot];
  params.rows.sampling[row] = params.state.sampling[slot];
  params.rows.sampling[row].position = int64_t{length} + place;
  const int32_t token = place == 0 ? params.state.last_token[slot] : params.draft_token_ids[row];
  make_row(params, request, row, token, length - 1 + place, length - 1 + place);
}

// length: state.length of the request before the step.
E31_HOST_DEVICE static inline void make_observed_row(const StepRowsParams& params, int64_t request, int32_t place,
                                                     int32_t length) {
  const int32_t slot = params.request_slots[request];
  const int64_t row = request * params.rows_per_request + place;
  const int32_t first_entry = slot < 0 ? 0 : params.state.first_draft_entry[slot];
  const bool follows = first_entry != 0;
  if (place == 0) make_extent(params, request, params.rows_per_request, first_entry, follows ? length : 0);
  if (!follows || place > params.num_accepted[request]) return make_inert_row(params, row);
  make_row(params, request, row, params.emitted_token_ids[row], length + place, length + place - 1);
}

E31_HOST_DEVICE static inline void store_result(const StepRowsParams& params, int64_t request, int32_t place) {
  const int32_t accepted = params.request_slots[request] < 0 ? -1 : params.num_accepted[request];
  int32_t* result = params.results + request * (params.rows_per_request + 1);
  if (place == 0) result[0] = accepted;
  result[place + 1] = place <= accepted ? params.emitted_token_ids[request * params.rows_per_request + place] : -1;
}

// After every reader of the request's length is done. length: as it was.
E31_HOST_DEVICE static inline void advance_state(const StepRowsParams& params, int64_t request, int32_t length) {
  const int32_t slot = params.request_slots[request];
  const int32_t accepted = slot < 0 ? -1 : params.num_accepted[request];
  if (accepted < 0) return;
  params.state.length[slot] = length + accepted + 1;
  params.state.last_token[slot] = params.emitted_token_ids[request * params.rows_per_request + accepted];
}

E31_HOST_DEVICE static inline void store_last_row(const StepRowsParams& params, int64_t slot) {
  const int32_t request = params.request_of_slot[slot];
  const bool observed = request >= 0 && params.state.first_draft_entry[slot] != 0 && params.num_accepted[request] >= 0;
  params.last_rows[slot] = observed ? request * params.rows_per_request + params.num_accepted[request] : -1;
}

}  // namespace eagle31rt
