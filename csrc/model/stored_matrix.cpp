#include "model/stored_matrix.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"

namespace eagle31rt {
namespace {

constexpr const char* kFp8Scale = "_scale_inv";
constexpr const char* kPacked = "_packed";
constexpr const char* kScale = "_scale";
constexpr const char* kShape = "_shape";

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

float element(const TensorEntry& entry, int64_t index) {
  return read_float(entry.data + index * dtype_size(entry.dtype), entry.dtype);
}

class PlainMatrix : public StoredMatrix {
 public:
  PlainMatrix(std::string name, int64_t rows, int64_t columns) : tensor_{std::move(name), {rows, columns}} {}

  std::vector<RowSource::Tensor> tensors() const override { return {tensor_}; }
  void read(std::span<const TensorEntry* const> entries, int64_t row, int64_t first_column, int64_t count,
            float* values) const override {
    const int64_t first = row * tensor_.shape[1] + first_column;
    for (int64_t j = 0; j < count; ++j) values[j] = element(*entries[0], first + j);
  }

 private:
  RowSource::Tensor tensor_;
};

// A scale for each block of block_rows x block_columns values; the last ones may be cut.
class ScaledMatrix : public StoredMatrix {
 public:
  ScaledMatrix(std::string name, int64_t rows, int64_t columns, const QuantisedFormat& format, WeightCode code)
      : name_(std::move(name)), rows_(rows), columns_(columns), format_(format), code_(code) {}

  void read(std::span<const TensorEntry* const> entries, int64_t row, int64_t first_column, int64_t count,
            float* values) const override {
    check(entries, row, first_column);
    const int64_t scale_row = row / format_.block_rows * scale_columns();
    for (int64_t column = first_column, end = first_column + count; column < end;) {
      const int64_t block = column / format_.block_columns;
      const float scale = element(*entries[1], scale_row + block);
      for (const int64_t stop = std::min(end, (block + 1) * format_.block_columns); column < stop; ++column) {
        *values++ = code_value(code_, code_at(entries[0]->data, row, column)) * scale;
      }
    }
  }
  WeightForm form(std::span<const TensorEntry* const> entries) const override {
    const bool is_bfloat16 = entries[1] != nullptr && entries[1]->dtype == DType::kBFloat16;
    const ScaleType scale =
        is_bfloat16 && code_ == WeightCode::kInt4 ? ScaleType::kBFloat16 : ScaleType::kFloat32;  // float32 holds any
    return {code_, scale, format_.block_columns};
  }
  void read_codes(std::span<const TensorEntry* const> entries, int64_t row, uint8_t* codes,
                  float* scales) const override {
    check(entries, row, 0);
    for (int64_t column = 0; column < columns_; ++column) *codes++ = code_at(entries[0]->data, row, column);
    const int64_t scale_row = row / format_.block_rows * scale_columns();
    for (int64_t block = 0; block < scale_columns(); ++block) *scales++ = element(*entries[1], scale_row + block);
  }

 protected:
  virtual void check(std::span<const TensorEntry* const> /*entries*/, int64_t /*row*/, int64_t /*column*/) const {}
  virtual uint8_t code_at(const std::byte* codes, int64_t row, int64_t column) const = 0;
  std::vector<int64_t> scale_shape() const { return {blocks_of(rows_, format_.block_rows), scale_columns()}; }

  std::string name_;
  int64_t rows_, columns_;

 private:
  int64_t scale_columns() const { return blocks_of(columns_, format_.block_columns); }

  QuantisedFormat format_;
  WeightCode code_;
};

class Fp8Matrix : public ScaledMatrix {
 public:
  Fp8Matrix(std::string name, int64_t rows, int64_t columns, const QuantisedFormat& format)
      : ScaledMatrix(std::move(name), rows, columns, format, WeightCode::kFp8) {}

  std::vector<RowSource::Tensor> tensors() const override {
    return {{name_, {rows_, columns_}, "F8_E4M3"}, {name_ + kFp8Scale, scale_shape()}};
  }

 protected:
  uint8_t code_at(const std::byte* codes, int64_t row, int64_t column) const override {
    return std::to_integer<uint8_t>(codes[row * columns_ + column]);
  }
};

// Eight values to an int32 along K, the lowest bits first, each with 8 added; the last word of a row is filled up.
class Int4Matrix : public ScaledMatrix {
 public:
  // shape_dtype: the file's, of weight_shape. The checkpoint must outlive the matrix.
  Int4Matrix(std::string name, int64_t rows, int64_t columns, const QuantisedFormat& format, const char* shape_dtype,
             const Checkpoint& checkpoint)
      : ScaledMatrix(std::move(name), rows, columns, format, WeightCode::kInt4),
        shape_dtype_(shape_dtype),
        checkpoint_(checkpoint) {}

  std::vector<RowSource::Tensor> tensors() const override {
    std::vector<RowSource::Tensor> result;  // not a list of initialisers, which would copy each name
    result.reserve(3);
    result.push_back({name_ + kPacked, {rows_, words_per_row()}, "I32"});
    result.push_back({name_ + kScale, scale_shape()});
    result.push_back({name_ + kShape, {2}, shape_dtype_});
    return result;
  }

 protected:
  // Once a matrix, and not with the headers: of a large model that would be a disk access for each of 10^5 matrices.
  void check(std::span<const TensorEntry* const> entries, int64_t row, int64_t column) const override {
    if (row != 0 || column != 0) return;
    const TensorEntry& shape = *entries[2];
    const int64_t rows = whole_number(shape, 0), columns = whole_number(shape, 1);
    E31_CHECK(rows == rows_ && columns == columns_, kCheckpoint, checkpoint_.directory(), ": tensor ",
              quote(shape.name), " holds [", rows, ", ", columns, "], but config.json asks for [", rows_, ", ",
              columns_, "]");
  }
  uint8_t code_at(const std::byte* codes, int64_t row, int64_t column) const override {
    const auto byte = std::to_integer<uint32_t>(codes[row * words_per_row() * 4 + column / 2]);
    return static_cast<uint8_t>(byte >> (column % 2 * 4) & 15u);
  }

 private:
  int64_t words_per_row() const { return blocks_of(columns_, 8); }
  static int64_t whole_number(const TensorEntry& entry, int64_t index) {
    uint64_t value = 0;
    const int64_t size = dtype_size(entry.dtype);
    for (int64_t i = 0; i < size; ++i) value |= std::to_integer<uint64_t>(entry.data[index * size + i]) << (8 * i);
    return size == 4 ? int64_t{static_cast<int32_t>(value)} : static_cast<int64_t>(value);
  }

  const char* shape_dtype_;
  const Checkpoint& checkpoint_;
};

bool is_quantised(const CanonicalNames& names, const QuantisedFormat& format, const std::string& name) {
  const auto has = [&](const char* suffix) { return names.find(name + suffix) != nullptr; };
  if (format.kind == QuantisedFormat::Kind::kPackedInt4) return has(kPacked) || has(kScale) || has(kShape);
  const TensorEntry* weight = names.find(name);
  return has(kFp8Scale) || (weight != nullptr && weight->dtype_name == "F8_E4M3");
}

}  // namespace

std::shared_ptr<const StoredMatrix> quantised_matrix(const CanonicalNames& names, const QuantisedFormat& format,
                                                     const std::string& name, int64_t rows, int64_t columns) {
  if (!is_quantised(names, format, name)) return nullptr;
  if (format.kind == QuantisedFormat::Kind::kFp8Blocks) {
    return std::make_shared<Fp8Matrix>(name, rows, columns, format);
  }
  const TensorEntry* shape = names.find(name + kShape);
  const bool is_short = shape != nullptr && shape->dtype_name == "I32";  // both occur in published files
  return std::make_shared<Int4Matrix>(name, rows, columns, format, is_short ? "I32" : "I64", names.checkpoint());
}

std::shared_ptr<const StoredMatrix> stored_matrix(const CanonicalNames& names,
                                                  const std::optional<QuantisedFormat>& format, const std::string& name,
                                                  int64_t rows, int64_t columns) {
  auto quantised = format ? quantised_matrix(names, *format, name, rows, columns) : nullptr;
  if (quantised) return quantised;
  return std::make_shared<PlainMatrix>(name, rows, columns);
}

void MatrixPart::read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
                      float* rows) const {
  const int64_t columns = layout_.columns;
  if (!layout_.transposed) {
    for (int64_t r = 0; r < num_rows; ++r) {
      matrix_->read(entries, layout_.first_row + first_row + r, 0, columns, rows + r * columns);
    }
    return;
  }
  std::vector<float> column(static_cast<size_t>(num_rows));
  for (int64_t k = 0; k < columns; ++k) {
    matrix_->read(entries, layout_.first_row + k, first_row, num_rows, column.data());
    for (int64_t r = 0; r < num_rows; ++r) rows[r * columns + k] = column[static_cast<size_t>(r)];
  }
}

void MatrixPart::read_codes(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
                            uint8_t* codes, float* scales) const {
  const int64_t num_groups = matrix_->form(entries).num_groups(layout_.columns);
  for (int64_t r = 0; r < num_rows; ++r) {
    matrix_->read_codes(entries, layout_.first_row + first_row + r, codes + r * layout_.columns,
                        scales + r * num_groups);
  }
}

}  // namespace eagle31rt
