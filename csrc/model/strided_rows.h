// Matrices that lie inside a larger tensor of the checkpoint, in its order or transposed.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/weight_loader.h"

namespace eagle31rt {

// Where row r of a matrix lies among the rows or columns that a fused tensor has for it: gate and up alternate there,
// while a packed weight holds all of the gate, then all of the up.
constexpr int64_t stored_row(int64_t row, int64_t num_interleaved) {
  if (num_interleaved == 0) return row;
  return row < num_interleaved ? 2 * row : 2 * (row - num_interleaved) + 1;
}

// A matrix inside a tensor (that of one expert or one head), with any strides: element (r, k) at
// offset + stored_row(r) * row_stride + k * column_stride.
class StridedRows : public RowSource {
 public:
  struct Layout {
    int64_t offset, row_stride, column_stride, columns;
    int64_t num_interleaved = 0;  // rows of the gate
  };
  StridedRows(Tensor tensor, const Layout& layout) : tensor_(std::move(tensor)), layout_(layout) {}

  std::vector<Tensor> tensors() const override { return {tensor_}; }
  void read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
            float* rows) const override {
    const TensorEntry& entry = *entries[0];
    const int64_t size = dtype_size(entry.dtype);
    // Columns outside: in a transposed matrix the rows of one column are neighbours.
    for (int64_t k = 0; k < layout_.columns; ++k) {
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t index = layout_.offset + k * layout_.column_stride +
                              stored_row(first_row + r, layout_.num_interleaved) * layout_.row_stride;
        rows[r * layout_.columns + k] = read_float(entry.data + index * size, entry.dtype);
      }
    }
  }

 private:
  Tensor tensor_;
  Layout layout_;
};

}  // namespace eagle31rt
