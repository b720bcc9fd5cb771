#include "device/execution_context.h"
#include "ops/step_rows/row_makers.h"

#ifndef E31_ISA
#error "compile this file as part of an instruction-set variant (E31_ISA)"
#endif

namespace eagle31rt::E31_ISA {

namespace {

void commit(const StepRowsParams& params, int64_t request) {
  const int32_t slot = params.request_slots[request];
  const int32_t length = slot < 0 ? 0 : params.state.length[slot];
  for (int32_t place = 0; place < params.rows_per_request; ++place) {
    store_result(params, request, place);
    if (params.rows.token_ids != nullptr) make_observed_row(params, request, place, length);
  }
  advance_state(params, request, length);
}

}  // namespace

void step_rows(const StepRowsParams& params, ExecutionContext&) {
  for (int64_t request = 0; request < params.num_requests; ++request) {
    switch (params.mode) {
      case StepRowsMode::kDraft:
        make_draft_row(params, request);
        break;
      case StepRowsMode::kVerify:
        for (int32_t place = 0; place < params.rows_per_request; ++place) make_verify_row(params, request, place);
        break;
      case StepRowsMode::kCommit:
        commit(params, request);
        break;
    }
  }
  if (params.mode != StepRowsMode::kCommit || params.request_of_slot == nullptr) return;
  for (int64_t slot = 0; slot < params.state.num_slots; ++slot) store_last_row(params, slot);
}

}  // namespace eagle31rt::E31_ISA
