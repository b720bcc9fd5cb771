// output[r] = input[indices[r]] for rows of 32-bit elements; a negative index leaves the output row as it was.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct GatherRowsParams {
  const float* input;      // [any, input_stride]; bits are copied, so int32 rows may be passed as well
  const int32_t* indices;  // [num_rows] or null: row r itself
  float* output;           // [num_rows, output_stride]; does not overlap the rows that are read
  int64_t num_rows;
  int64_t num_columns;
  int64_t input_stride;   // elements between rows
  int64_t output_stride;  // elements between rows
};

}  // namespace eagle31rt
