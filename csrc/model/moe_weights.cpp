#include "model/moe_weights.h"

#include <memory>
#include <vector>

#include "base/check.h"
#include "model/strided_rows.h"

namespace eagle31rt {
namespace {

// One expert's matrix in MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 values along K, two 4-bit floats (E2M1) a
// byte, the lower half first, and a power of two for each block (E8M0, bias 127).
class Mxfp4Rows : public RowSource {
 public:
  struct Layout {
    int64_t num_experts, expert, num_rows, columns;
    int64_t num_interleaved = 0;
  };
  Mxfp4Rows(std::string name, const Layout& layout) : name_(std::move(name)), layout_(layout) {}

  std::vector<Tensor> tensors() const override {
    const int64_t num_blocks = layout_.columns / kBlock;
    return {{name_ + "_blocks", {layout_.num_experts, layout_.num_rows, num_blocks, kBlock / 2}, "U8"},
            {name_ + "_scales", {layout_.num_experts, layout_.num_rows, num_blocks}, "U8"}};
  }
  void read(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows,
            float* rows) const override {
    const int64_t num_blocks = layout_.columns / kBlock;
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t row = layout_.expert * layout_.num_rows + stored_row(first_row + r, layout_.num_interleaved);
      for (int64_t block = row * num_blocks; block < (row + 1) * num_blocks; ++block) {
        const float scale = e8m0_value(std::to_integer<uint32_t>(entries[1]->data[block]));
        for (int64_t i = 0; i < kBlock; ++i)
          *rows++ = code_value(WeightCode::kFp4, code(*entries[0], block, i)) * scale;
      }
    }
  }
  WeightForm form(std::span<const TensorEntry* const> /*entries*/) const override {
    return {WeightCode::kFp4, ScaleType::kE8M0, kBlock};
  }
  void read_codes(std::span<const TensorEntry* const> entries, int64_t first_row, int64_t num_rows, uint8_t* codes,
                  float* scales) const override {
    const int64_t num_blocks = layout_.columns / kBlock;
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t row = layout_.expert * layout_.num_rows + stored_row(first_row + r, layout_.num_interleaved);
      for (int64_t block = row * num_blocks; block < (row + 1) * num_blocks; ++block) {
        for (int64_t i = 0; i < kBlock; ++i) *codes++ = code(*entries[0], block, i);
        *scales++ = e8m0_value(std::to_integer<uint32_t>(entries[1]->data[block]));
      }
    }
  }

 private:
  static constexpr int32_t kBlock = 32;

  static uint8_t code(const TensorEntry& blocks, int64_t block, int64_t i) {
    return static_cast<uint8_t>(std::to_integer<uint32_t>(blocks.data[block * (kBlock / 2) + i / 2]) >> (i % 2 * 4) &
                                0xfu);
  }

  std::string name_;
  Layout layout_;
};

struct Matrix {
  const char* name;  // in the file, fused
  int64_t rows, columns;
  int64_t num_interleaved;
};

// The expert's matrix as one part of a packed weight.
TensorPart fused_part(const MoeConfig& config, const Matrix& matrix, int64_t expert, const std::string& prefix) {
  const std::string name = prefix + "mlp.experts." + matrix.name;
  if (config.tensors == ExpertTensors::kMxfp4) {
    return {name, matrix.rows,
            std::make_shared<Mxfp4Rows>(name, Mxfp4Rows::Layout{config.num_experts, expert, matrix.rows, matrix.columns,
                                                                matrix.num_interleaved})};
  }
  const StridedRows::Layout layout = {expert * matrix.rows * matrix.columns, 1, matrix.rows, matrix.columns,
                                      matrix.num_interleaved};
  return {name, matrix.rows,
          std::make_shared<StridedRows>(RowSource::Tensor{name, {config.num_experts, matrix.columns, matrix.rows}},
                                        layout)};
}

void add_fused_bias(WeightLoader& loader, Vector& bias, const MoeConfig& config, const Matrix& matrix,
                    const std::string& prefix) {
  const std::string name = prefix + "mlp.experts." + matrix.name + "_bias";
  std::vector<TensorPart> parts;
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    const StridedRows::Layout layout = {expert * matrix.rows, 1, 1, 1, matrix.num_interleaved};
    parts.push_back(
        {name, matrix.rows,
         std::make_shared<StridedRows>(RowSource::Tensor{name, {config.num_experts, matrix.rows}}, layout)});
  }
  loader.add_vector(bias, std::move(parts));
}

void add_fused(WeightLoader& loader, MoeWeights& weights, const MoeConfig& config, int64_t hidden_size,
               const std::string& prefix) {
  const int64_t width = config.moe_intermediate_size;
  const Matrix gate_up = {"gate_up_proj", 2 * width, hidden_size, width};
  const Matrix down = {"down_proj", hidden_size, width, 0};
  const auto add = [&](std::vector<PackedWeight>& experts, Vector& bias, const Matrix& matrix) {
    loader.add_matrices(
        experts, [&](int64_t e) { return std::vector<TensorPart>{fused_part(config, matrix, e, prefix)}; },
        matrix.columns);
    if (config.expert_biases) add_fused_bias(loader, bias, config, matrix, prefix);
  };
  add(weights.gate_up, weights.gate_up_bias, gate_up);
  add(weights.down, weights.down_bias, down);
}

void add_separate(WeightLoader& loader, MoeWeights& weights, const MoeConfig& config, int64_t hidden_size,
                  const std::string& prefix) {
  const int64_t width = config.moe_intermediate_size;
  // Not by concat(): Kimi K2 has 69,120 of them, and its streams would take longer than all else that check does here.
  const auto name = [&](int64_t expert, const char* matrix) {
    return prefix + "mlp.experts." + std::to_string(expert) + "." + matrix + ".weight";
  };
  loader.add_matrices(
      weights.gate_up,
      [&](int64_t e) { return std::vector<TensorPart>{{name(e, "gate_proj"), width}, {name(e, "up_proj"), width}}; },
      hidden_size);
  loader.add_matrices(
      weights.down, [&](int64_t e) { return std::vector<TensorPart>{{name(e, "down_proj"), hidden_size}}; }, width);
}

}  // namespace

void add_moe(WeightLoader& loader, MoeWeights& weights, const MoeConfig& config, int64_t hidden_size,
             const std::string& prefix) {
  const bool separate = config.tensors == ExpertTensors::kSeparate;
  const std::string router = prefix + (separate ? "mlp.gate" : "mlp.router");
  loader.add_matrix(weights.router, {{router + ".weight", config.num_experts}}, hidden_size);
  if (config.router_bias) loader.add_vector(weights.router_bias, {{router + ".bias", config.num_experts}});
  if (config.bias_correction) {
    loader.add_vector(weights.correction, {{router + ".e_score_correction_bias", config.num_experts}});
  }
  // The loader places weights one behind the other in the order in which they are added: hence the equal distances.
  weights.gate_up.resize(static_cast<size_t>(config.num_experts));
  weights.down.resize(static_cast<size_t>(config.num_experts));
  (separate ? add_separate : add_fused)(loader, weights, config, hidden_size, prefix);
}

int64_t MoeWeights::num_bytes() const {
  int64_t bytes = router.num_bytes();
  for (const auto* experts : {&gate_up, &down}) {
    for (const PackedWeight& weight : *experts) bytes += weight.num_bytes();
  }
  for (const Vector* vector : {&router_bias, &correction, &gate_up_bias, &down_bias}) bytes += vector_bytes(*vector);
  return bytes;
}

}  // namespace eagle31rt
