// Fills weights from a checkpoint in two passes: every name, shape and dtype is checked first, so that a wrong file is
// refused before anything large is read; then tensor after tensor is packed and its file pages are dropped, so that the
// peak is the weights plus one tensor. For a device with memory of its own, rows are packed into a small buffer and
// copied from there, so that the host never holds a second copy.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/checkpoint.h"
#include "model/weights.h"

namespace eagle31rt {

// The tensors of a checkpoint under canonical names.
class CanonicalNames {
 public:
  // canonical: name in the file -> canonical name, or "" for a tensor to ignore; a part of that name, or of the second
  // argument after writing to it. Two tensors with one canonical name are an Error(kCheckpoint).
  CanonicalNames(const Checkpoint& checkpoint,
                 const std::function<std::string_view(const std::string&, std::string&)>& canonical);

  CanonicalNames(const CanonicalNames&) = delete;  // its names lie in place

  const TensorEntry* find(const std::string& name) const;  // nullptr if absent
  const TensorEntry* find_containing(const std::string& part) const;
  void erase(const std::string& name) { tensors_.erase(name); }  // a tensor that was dealt with
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::unordered_map<std::string_view, const TensorEntry*>& tensors() const { return tensors_; }

 private:
  const Checkpoint& checkpoint_;
  std::deque<std::string> written_;  // names that are no part of the file's
  std::unordered_map<std::string_view, const TensorEntry*> tensors_;
};

std::string_view strip_model_prefix(std::string_view name);

// Rows that no tensor of the file holds as they are: a slice, a transpose, a quantised format. Made when they are
// packed, a panel at a time, so that the file's own form is all that is ever held beside the packed weights.
class RowSource {
 public:
  struct Tensor {
    std::string name;  // canonical
    std::vector<int64_t> shape;
    std::string dtype_name = "";  // as the file spells it; empty: F32, BF16 or F16
  };
  virtual ~RowSource() = default;
  virtual std::vector<Tensor> tensors() const = 0;
  // rows [num_rows, columns] = the matrix's rows from first_row on. entries: of tensors(), in their order.
  virtual void read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
                    float* rows) const = 0;
  // The form in which rows can be had as codes, if they can; entries may be null where the file lacks a tensor.
  virtual WeightForm form(std::span<const TensorEntry* const> /*entries*/) const { return {}; }
  // The same rows in this form: codes [num_rows, columns], scales [num_rows, groups], for PackedWeight::write_codes.
  virtual void read_codes(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
                          uint8_t* codes, float* scales) const;
};

enum class Storage {
  kAsStored,     // quantised if the checkpoint is and the operators have kernels for its form
  kDequantised,  // for operators that read elements: the embedding
};

class StoredMatrix;  // stored_matrix.h

// One checkpoint tensor inside a packed weight or vector: rows of a matrix, or elements.
struct TensorPart {
  std::string name;  // for messages only, if there is a source
  int64_t rows;
  std::shared_ptr<const RowSource> source = nullptr;  // null: the tensor `name` itself
};

class WeightLoader {
 public:
  // dtype: of the packed matrices. Vectors are float32.
  WeightLoader(const CanonicalNames& names, DType dtype, Device& device,
               const std::optional<QuantisedFormat>& quantised = std::nullopt);

  // Parts are stacked in order. Destinations must stay in place until run(). A part without a source is read in the
  // form in which the checkpoint has it.
  void add_matrix(PackedWeight& destination, std::vector<TensorPart> parts, int64_t columns,
                  Storage storage = Storage::kAsStored);
  // The matrices of experts: of one form, dequantised if the checkpoint has them in several.
  void add_matrices(std::vector<PackedWeight>& destinations,
                    const std::function<std::vector<TensorPart>(int64_t)>& parts_of, int64_t columns);
  void add_vector(Vector& destination, std::vector<TensorPart> parts);
  // Everything added, in order.
  void for_each_part(const std::function<void(const WeightPart&)>& visit) const;
  // For sources that are a part of a matrix.
  std::shared_ptr<const StoredMatrix> matrix(const std::string& name, int64_t rows, int64_t columns) const;
  // Each throws Error(kCheckpoint), or Error(kUnsupported) for a dtype, and reads headers only.
  void check_shapes() const;   // of the tensors that are there
  void check_missing() const;  // none of those added
  void check_unused() const;   // none beside those added
  // Checks that the checkpoint holds exactly what was added, then loads it.
  void run();

 private:
  struct MatrixPlan {
    PackedWeight* destination;
    std::vector<TensorPart> parts;
    int64_t columns;
    WeightForm form;
  };
  struct VectorPlan {
    Vector* destination;
    std::vector<TensorPart> parts;
  };

  struct WantedTensor {
    RowSource::Tensor tensor;
    const TensorEntry* entry;  // null: the checkpoint lacks it
  };
  size_t bytes_of(const MatrixPlan& plan, int64_t num_rows) const;
  // Looks the tensors of a part up, once for all checks: a model of 10^5 tensors is checked in a second.
  std::vector<const TensorEntry*> want(const TensorPart& part, const std::vector<int64_t>& shape,
                                       std::vector<WantedTensor>& wanted) const;
  void for_each_wanted(const std::function<void(const WantedTensor&)>& visit) const;
  void allocate_matrices() const;
  std::vector<const TensorEntry*> entries_of(const TensorPart& part) const;
  int64_t write_rows(PackedWeight& destination, int64_t row, const TensorPart& part, int64_t first, int64_t count,
                     int64_t columns) const;
  void finish(const TensorPart& part, int64_t num_bad, DType dtype) const;
  void load_in_place(const MatrixPlan& plan) const;
  void load_staged(const MatrixPlan& plan, const std::shared_ptr<std::byte>& staging) const;
  void load(const VectorPlan& plan) const;

  const CanonicalNames& names_;
  DType dtype_;
  Device& device_;
  std::optional<QuantisedFormat> quantised_;
  WeightLayout layout_;
  std::vector<MatrixPlan> matrices_;
  std::vector<VectorPlan> vectors_;
  std::vector<WantedTensor> wanted_of_matrices_, wanted_of_vectors_;
};

struct LayerTensors {
  int64_t hidden, intermediate, num_heads, num_kv_heads, head_dim;  // intermediate 0: no MLP
  int64_t attention_width;                                          // input of q, k and v
  bool qkv_bias, output_bias, mlp_bias;
  bool qk_norm = false;
  bool sinks = false;
  bool sandwich_norms = false, centred_norms = false;
  std::optional<MlaConfig> mla = std::nullopt;
  const char* mlp_prefix = "mlp.";
};

// The tensors of `prefix` ("layers.0."), without hidden_norm.
void add_layer(WeightLoader& loader, LayerWeights& layer, const LayerTensors& shape, const std::string& prefix);

int64_t vector_bytes(const Vector& vector);
int64_t layer_bytes(const LayerWeights& layer);

}  // namespace eagle31rt
