// Plain sampling of rows whose scratch memory the caller provides; for operators that sample on their way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/execution_context.h"
#include "ops/sample/sample.h"

namespace eagle31rt::cuda {

// Bytes for the bitmaps of the masked ids of all rows (row_logits.cuh); 0 if no row can have any.
size_t mask_scratch_bytes(const SampleParams& params);

// num_rows_in_use: a number on the device, or null for all rows; rows from there on are left alone.
void sample_rows(const SampleParams& params, const int32_t* num_rows_in_use, uint32_t* mask_scratch,
                 ExecutionContext& context);

}  // namespace eagle31rt::cuda
