// A matrix in the form in which a checkpoint stores it, read as float32 or as its codes: plain, in FP8 blocks or as
// packed int4.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/weight_loader.h"

namespace eagle31rt {

class StoredMatrix {
 public:
  virtual ~StoredMatrix() = default;
  virtual std::vector<RowSource::Tensor> tensors() const = 0;
  // values[j] = element (row, first_column + j), j < count. entries: of tensors(), in their order.
  virtual void read(std::span<const TensorEntry* const> entries, int64_t row, int64_t first_column, int64_t count,
                    float* values) const = 0;
  // As of RowSource, for whole rows.
  virtual WeightForm form(std::span<const TensorEntry* const> /*entries*/) const { return {}; }
  virtual void read_codes(std::span<const TensorEntry* const> /*entries*/, int64_t /*row*/, uint8_t* /*codes*/,
                          float* /*scales*/) const {}
};

// The matrix [rows, columns] with the canonical name `name`, which ends in ".weight". It has the form `format` if the
// checkpoint has one of the tensors of that form for it; a tensor that is missing among these is then the caller's to
// report, like any other.
std::shared_ptr<const StoredMatrix> stored_matrix(const CanonicalNames& names,
                                                  const std::optional<QuantisedFormat>& format, const std::string& name,
                                                  int64_t rows, int64_t columns);
// The same; null for a matrix that is not quantised.
std::shared_ptr<const StoredMatrix> quantised_matrix(const CanonicalNames& names, const QuantisedFormat& format,
                                                     const std::string& name, int64_t rows, int64_t columns);

// A part of a stored matrix, as it is or transposed.
class MatrixPart : public RowSource {
 public:
  struct Layout {
    int64_t first_row, columns;  // first_row: of the stored matrix; columns: of the part
    bool transposed = false;     // then the part's rows are the first stored columns
  };
  MatrixPart(std::shared_ptr<const StoredMatrix> matrix, const Layout& layout)
      : matrix_(std::move(matrix)), layout_(layout) {}

  std::vector<Tensor> tensors() const override { return matrix_->tensors(); }
  void read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
            float* rows) const override;
  WeightForm form(std::span<const TensorEntry* const> entries) const override {
    return layout_.transposed ? WeightForm{} : matrix_->form(entries);  // a group would run down a column
  }
  void read_codes(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows, uint8_t* codes,
                  float* scales) const override;

 private:
  std::shared_ptr<const StoredMatrix> matrix_;
  Layout layout_;
};

}  // namespace eagle31rt
