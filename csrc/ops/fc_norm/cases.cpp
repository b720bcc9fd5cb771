#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  FcNormMode mode;
  int32_t num_chunks;
  int64_t chunk_size;
  int64_t hidden_size;
  bool has_bias;
};

// One chunk to eight, chunk sizes that are and are not multiples of the 16 lanes, target wider and narrower than
// draft. On CUDA: chunks that end inside a tile of K, at multiples of 16 bytes (40) and not (130).
constexpr Variant kVariants[] = {
    {DType::kFloat32, FcNormMode::kNone, 3, 24, 33, false},
    {DType::kBFloat16, FcNormMode::kPerChunk, 3, 576, 64, false},
    {DType::kFloat16, FcNormMode::kPerChunk, 8, 40, 31, true},
    {DType::kFloat32, FcNormMode::kPerChunk, 1, 8, 72, true},
    {DType::kBFloat16, FcNormMode::kWhole, 3, 40, 96, false},
    {DType::kFloat16, FcNormMode::kWhole, 2, 576, 16, true},
    {DType::kBFloat16, FcNormMode::kPerChunk, 2, 130, 130, true},
    {DType::kFloat16, FcNormMode::kNone, 3, 64, 40, false},
};

// Streams of fill_row.
enum : uint64_t { kInputStream, kWeightStream, kBiasStream, kNormStream };

class FcNormCase : public OpCase {
 public:
  FcNormCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(static_cast<int64_t>(row_ids.size())),
        in_features_(static_cast<size_t>(variant.chunk_size * variant.num_chunks)),
        weight_(make_case_weight(variant.dtype, variant.hidden_size, static_cast<int64_t>(in_features_))),
        captured_(row_ids.size() * in_features_),
        norm_weight_(in_features_),
        bias_(static_cast<size_t>(variant.hidden_size)) {
    std::pmr::vector<float> row(in_features_);
    for (int64_t o = 0; o < variant.hidden_size; ++o) {
      fill_row(row, static_cast<uint64_t>(o), kWeightStream, 0.1f);
      weight_.write_rows(o, row.data(), DType::kFloat32, 1);
    }
    fill_row(bias_, 0, kBiasStream);
    fill_row(norm_weight_, 0, kNormStream);
    for (size_t r = 0; r < row_ids.size(); ++r) {
      fill_row({captured_.data() + r * in_features_, in_features_}, row_ids[r], kInputStream, 20.0f);
    }
  }

  void run(ExecutionContext& context) override { context.ops.fc_norm(prepare(), context); }
  void run_reference() override { reference::fc_norm(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * bias_.size(), bias_.size()));
  }

 private:
  FcNormParams prepare() {
    output_.assign(static_cast<size_t>(num_rows_) * bias_.size(), std::numeric_limits<float>::quiet_NaN());
    FcNormParams params{};
    params.captured = captured_.data();
    params.norm_weight = variant_.mode == FcNormMode::kNone ? nullptr : norm_weight_.data();
    params.weight = weight_.view();
    params.bias = variant_.has_bias ? bias_.data() : nullptr;
    params.output = output_.data();
    params.num_rows = num_rows_;
    params.chunk_size = variant_.chunk_size;
    params.num_chunks = variant_.num_chunks;
    params.mode = variant_.mode;
    params.epsilon = 1e-5f;
    return params;
  }

  Variant variant_;
  int64_t num_rows_;
  size_t in_features_;
  PackedWeight weight_;
  std::pmr::vector<float> captured_, norm_weight_, bias_, output_;
};

std::string describe(const Variant& variant) {
  const char* mode = variant.mode == FcNormMode::kNone       ? "no norm"
                     : variant.mode == FcNormMode::kPerChunk ? "norm per chunk"
                                                             : "norm of the whole";
  return concat(dtype_name(variant.dtype), " ", variant.num_chunks, "x", variant.chunk_size, "->", variant.hidden_size,
                " ", mode, variant.has_bias ? " bias" : "");
}

}  // namespace

OpEntry fc_norm_cases() {
  OpEntry entry;
  entry.name = "fc_norm";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  // As for linear, on normed inputs near 1 (up to 1.7) and 1728 of them; without the norm inputs of 20 but only 72.
  entry.tolerance = {4e-5, 2e-6};
  // On CUDA as for linear: normed inputs times norm weights below 1 have the same root mean square as its inputs, 0.58,
  // and a relative rounding of 2^-9 * 0.785; 1728 of them give 2.2e-3, and 5 times that is 1.1e-2. Without a norm:
  // inputs of 20, 192 of them in float16, 2.0e-3.
  entry.cuda_tolerance = {1.1e-2, 1e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<FcNormCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
