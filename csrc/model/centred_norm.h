// Norm weights that are stored as their distance from 1 (gemma): the layer multiplies by 1 + weight.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/weight_loader.h"

namespace eagle31rt {

class CentredNorm : public RowSource {
 public:
  explicit CentredNorm(Tensor tensor) : tensor_(std::move(tensor)) {}

  std::vector<Tensor> tensors() const override { return {tensor_}; }
  void read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
            float* rows) const override {
    const TensorEntry& entry = *entries[0];
    for (int64_t r = 0; r < num_rows; ++r) {
      rows[r] = 1.0f + read_float(entry.data + (first_row + r) * dtype_size(entry.dtype), entry.dtype);
    }
  }

 private:
  Tensor tensor_;
};

// The weight `name` [size] of a norm, as the operators multiply by it.
inline TensorPart norm_part(const std::string& name, int64_t size, bool centred) {
  if (!centred) return {name, size};
  return {name, size, std::make_shared<CentredNorm>(RowSource::Tensor{name, {size}})};
}

}  // namespace eagle31rt
