#include <vector>

#include "ops/ops.h"
#include "ops/step_rows/step_rows.h"

namespace eagle31rt::reference {

namespace {

struct Row {
  int32_t token = 0;
  int32_t position = 0;
  int32_t entry = -1;  // the KV entry that it writes; -1: none
};

void store(const StepRowsParams& params, int64_t request, int64_t index, const Row& row) {
  int64_t kv_slot = -1;
  if (row.entry >= 0 && row.entry < params.state.max_entries[params.request_slots[request]]) {
    const int64_t page = params.page_table[request * params.page_table_stride + row.entry / params.page_size];
    kv_slot = page * params.page_size + row.entry % params.page_size;
  }
  params.rows.token_ids[index] = row.token;
  params.rows.positions[index] = row.position;
  params.rows.slots[index] = kv_slot;
}

void store_row_begin(const StepRowsParams& params, int32_t rows) {
  params.rows.row_begin[0] = 0;
  for (int64_t i = 0; i < params.num_requests; ++i) {
    params.rows.row_begin[i + 1] = params.rows.row_begin[i] + (params.request_slots[i] < 0 ? 0 : rows);
  }
}

int32_t drawn_target(const StepRowsParams& params, int64_t request) {
  int32_t id = params.drawn_ids[request];
  if (id == -1) id = 0;
  return params.draft_to_target ? params.draft_to_target[id] : id;
}

constexpr SamplingRow kNoSampling = {0.0f, 0, 1.0f, 0.0f, 0, 0};

void draft(const StepRowsParams& params) {
  const int32_t step = params.draft_step;
  for (int64_t i = 0; i < params.num_requests; ++i) {
    const int32_t slot = params.request_slots[i];
    const int32_t num_drafts = slot < 0 ? 0 : params.num_drafts[i];
    if (step > 0 && num_drafts >= step) {
      params.draft_token_ids[i * params.rows_per_request + step] = drawn_target(params, i);
    }
    params.rows.sampling[i] = kNoSampling;
    if (num_drafts > step) {
      const float temperature = params.draw_drafts ? params.state.sampling[slot].temperature : 0.0f;
      params.rows.sampling[i] = {
          temperature, 0, 1.0f, 0.0f, params.state.sampling[slot].seed, params.state.length[slot] + step};
    }
    if (step == 0) continue;
    Row row;
    params.rows.kv_begin[i] = params.rows.kv_length[i] = 0;
    if (num_drafts > step) {
      const int32_t entry = params.state.length[slot] - 1 + step;
      row = {drawn_target(params, i), entry - 1, entry};
      params.rows.kv_begin[i] = params.state.first_draft_entry[slot];
      params.rows.kv_length[i] = entry;
    }
    store(params, i, i, row);
  }
  if (step > 0) store_row_begin(params, 1);
}

void verify(const StepRowsParams& params) {
  const int32_t rows = params.rows_per_request;
  for (int64_t i = 0; i < params.num_requests; ++i) {
    const int32_t slot = params.request_slots[i];
    const int32_t length = slot < 0 ? 1 : params.state.length[slot];
    params.rows.kv_begin[i] = 0;
    params.rows.kv_length[i] = length - 1;
    for (int32_t j = 0; j < rows; ++j) {
      const int64_t index = i * rows + j;
      if (params.rows.acceptance_rates) params.rows.acceptance_rates[index] = j < rows - 1 ? params.rates[j] : 0.0f;
      Row row;
      int32_t draft_id = -1;
      params.rows.sampling[index] = kNoSampling;
      if (slot >= 0 && j <= params.num_drafts[i]) {
        if (j > 0) draft_id = j == rows - 1 ? drawn_target(params, i) : params.draft_token_ids[index];
        params.rows.sampling[index] = params.state.sampling[slot];
        params.rows.sampling[index].position = length + j;
        row = {j == 0 ? params.state.last_token[slot] : draft_id, length - 1 + j, length - 1 + j};
      }
      params.draft_token_ids[index] = draft_id;
      store(params, i, index, row);
    }
  }
  store_row_begin(params, rows);
}

void commit(const StepRowsParams& params) {
  const int32_t rows = params.rows_per_request;
  std::vector<int32_t> last_rows(static_cast<size_t>(params.state.num_slots), -1);
  for (int64_t i = 0; i < params.num_requests; ++i) {
    const int32_t slot = params.request_slots[i];
    const int32_t accepted = slot < 0 ? -1 : params.num_accepted[i];
    const int32_t* emitted = params.emitted_token_ids + i * rows;
    const int32_t length = slot < 0 ? 0 : params.state.length[slot];
    const bool drafting = slot >= 0 && params.state.first_draft_entry[slot] > 0;
    if (params.rows.token_ids) {
      params.rows.kv_begin[i] = drafting ? params.state.first_draft_entry[slot] : 0;
      params.rows.kv_length[i] = drafting ? length : 0;
    }
    params.results[i * (rows + 1)] = accepted;
    for (int32_t j = 0; j < rows; ++j) {
      params.results[i * (rows + 1) + 1 + j] = j <= accepted ? emitted[j] : -1;
      Row row;
      if (drafting && j <= accepted) row = {emitted[j], length + j - 1, length + j};
      if (params.rows.token_ids) store(params, i, i * rows + j, row);
    }
    if (accepted < 0) continue;
    params.state.length[slot] = length + accepted + 1;
    params.state.last_token[slot] = emitted[accepted];
    if (drafting) last_rows[static_cast<size_t>(slot)] = static_cast<int32_t>(i * rows + accepted);
  }
  if (params.rows.token_ids) store_row_begin(params, rows);
  if (!params.request_of_slot) return;
  for (size_t slot = 0; slot < last_rows.size(); ++slot) params.last_rows[slot] = last_rows[slot];
}

}  // namespace

void step_rows(const StepRowsParams& params) {
  if (params.mode == StepRowsMode::kDraft) draft(params);
  if (params.mode == StepRowsMode::kVerify) verify(params);
  if (params.mode == StepRowsMode::kCommit) commit(params);
}

}  // namespace eagle31rt::reference
