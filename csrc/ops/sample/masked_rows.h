// Rows with masked ids are copied to scratch memory, where those ids get -inf.
#pragma once

#include "ops/sample/sample.h"

namespace eagle31rt {

// Scratch for one row per thread, or null if no row has a mask. Called once per operator call, before the tasks start,
// because tasks must not throw: Error(kResource) if memory cannot be had. The memory belongs to the calling thread and
// holds until its next call.
float* masked_row_scratch(const SampleParams& params, int num_threads);

}  // namespace eagle31rt
