// Runs body(row) for every row: on the calling thread when the whole work is smaller than what a fork saves, else on
// the pool. A decode step has 1-8 rows and about 100 such calls, a fork costs about 0.5 us.
#pragma once

#include <cstdint>

#include "device/execution_context.h"

#ifndef E31_ISA
#error "compile this file as part of an instruction-set variant (E31_ISA)"
#endif

namespace eagle31rt::E31_ISA {

// Elements of a plain read-multiply-write pass that one task should hold: about 1 us.
constexpr int64_t kElementsPerTask = 16384;

// row_cost: work of a row, in elements of such a pass.
template <typename Body>
void for_each_row(ExecutionContext& context, int64_t num_rows, int64_t row_cost, Body body) {
  const int64_t rows_per_task = row_cost < kElementsPerTask ? kElementsPerTask / (row_cost > 0 ? row_cost : 1) : 1;
  const int64_t num_tasks = (num_rows + rows_per_task - 1) / rows_per_task;
  auto task = [&](int64_t index, int) {
    const int64_t end = (index + 1) * rows_per_task < num_rows ? (index + 1) * rows_per_task : num_rows;
    for (int64_t row = index * rows_per_task; row < end; ++row) body(row);
  };
  context.pool.parallel_for(num_tasks, task);
}

}  // namespace eagle31rt::E31_ISA
