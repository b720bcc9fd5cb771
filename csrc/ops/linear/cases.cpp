#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

enum class Residual { kNone, kSeparate, kInPlace };

struct Variant {
  DType dtype;
  int64_t in_features;
  int64_t out_features;
  bool has_bias;
  Residual residual;
  int64_t stride_padding = 3;
  WeightForm form = {};
};

// Widths around the panel (32) and the vector (16); depths around the blocks of the k loop (128). On CUDA: rows that
// start at multiples of 16 bytes (padding 4) and of 4; K cut into two and three segments; a last segment that is
// shorter. Quantised: every code in every dtype, groups of each kind that the kernels tell apart, cut groups and tiles.
constexpr Variant kVariants[] = {
    {DType::kFloat32, 8, 1, false, Residual::kNone},
    {DType::kBFloat16, 8, 31, true, Residual::kNone},
    {DType::kFloat16, 24, 33, false, Residual::kSeparate},
    {DType::kFloat32, 576, 33, true, Residual::kInPlace},
    {DType::kBFloat16, 576, 96, false, Residual::kInPlace},
    {DType::kFloat16, 576, 64, true, Residual::kNone},
    {DType::kBFloat16, 130, 1000, true, Residual::kSeparate},
    {DType::kBFloat16, 1536, 48, false, Residual::kNone},
    {DType::kFloat32, 1, 17, false, Residual::kNone},
    {DType::kBFloat16, 1100, 72, true, Residual::kInPlace},
    {DType::kFloat16, 1600, 40, true, Residual::kSeparate, 4},
    {DType::kBFloat16, 192, 130, false, Residual::kNone, 4},
    {DType::kBFloat16, 576, 96, false, Residual::kInPlace, 3, kFp8Form},
    {DType::kBFloat16, 1100, 72, true, Residual::kNone, 4, kInt4Form},
    {DType::kBFloat16, 192, 130, false, Residual::kSeparate, 4, kMxfp4Form},
    {DType::kFloat16, 130, 33, true, Residual::kNone, 3, kFp8Form},
    {DType::kFloat16, 1600, 40, false, Residual::kNone, 4, {WeightCode::kInt4, ScaleType::kFloat32, 128}},
    {DType::kFloat16, 64, 17, false, Residual::kNone, 3, kMxfp4Form},
    {DType::kFloat32, 200, 31, true, Residual::kSeparate, 3, kFp8Form},
    {DType::kFloat32, 100, 65, false, Residual::kNone, 3, {WeightCode::kInt4, ScaleType::kBFloat16, 16}},
    {DType::kFloat32, 96, 33, false, Residual::kNone, 3, kMxfp4Form},
};

// Streams of fill_row.
enum : uint64_t { kInputStream, kResidualStream, kWeightStream, kBiasStream };

class LinearCase : public OpCase {
 public:
  LinearCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(static_cast<int64_t>(row_ids.size())),
        weight_(make_case_weight(variant.dtype, variant.out_features, variant.in_features, variant.form)),
        input_(row_ids.size() * input_stride(), std::numeric_limits<float>::quiet_NaN()),
        residual_(row_ids.size() * output_stride()),
        bias_(static_cast<size_t>(variant.out_features)) {
    for (int64_t o = 0; o < variant.out_features; ++o) {
      write_case_row(weight_, o, static_cast<uint64_t>(o), kWeightStream);
    }
    fill_row(bias_, 0, kBiasStream);
    for (size_t r = 0; r < row_ids.size(); ++r) {
      fill_row({input_.data() + r * input_stride(), static_cast<size_t>(variant.in_features)}, row_ids[r],
               kInputStream);
      fill_row({residual_.data() + r * output_stride(), bias_.size()}, row_ids[r], kResidualStream);
    }
  }

  void run(ExecutionContext& context) override { context.ops.linear(prepare(), context); }
  void run_reference() override { reference::linear(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(output_).subspan(static_cast<size_t>(row) * output_stride(), bias_.size()));
  }

 private:
  size_t input_stride() const { return static_cast<size_t>(variant_.in_features + variant_.stride_padding); }
  size_t output_stride() const { return static_cast<size_t>(variant_.out_features + variant_.stride_padding); }

  LinearParams prepare() {
    const bool in_place = variant_.residual == Residual::kInPlace;
    output_ = in_place ? residual_ : std::pmr::vector<float>(residual_.size(), std::numeric_limits<float>::quiet_NaN());
    LinearParams params{};
    params.input = input_.data();
    params.weight = weight_.view();
    params.bias = variant_.has_bias ? bias_.data() : nullptr;
    params.residual = variant_.residual == Residual::kNone ? nullptr : in_place ? output_.data() : residual_.data();
    params.output = output_.data();
    params.num_rows = num_rows_;
    params.input_stride = static_cast<int64_t>(input_stride());
    params.output_stride = static_cast<int64_t>(output_stride());
    return params;
  }

  Variant variant_;
  int64_t num_rows_;
  PackedWeight weight_;
  std::pmr::vector<float> input_, residual_, bias_, output_;
};

std::string describe(const Variant& variant) {
  std::string text = concat(dtype_name(variant.dtype), " ", variant.in_features, "->", variant.out_features,
                            describe_form(variant.form));
  if (variant.has_bias) text += " bias";
  if (variant.residual == Residual::kSeparate) text += " residual";
  if (variant.residual == Residual::kInPlace) text += " residual in place";
  return text;
}

}  // namespace

OpEntry linear_cases() {
  OpEntry entry;
  entry.name = "linear";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  // Inputs below 1 and weights below 0.1: partial sums stay near sqrt(K) / 30, below 1.5, so K = 1536 roundings of half
  // a unit (2^-24) add up to 4e-6 if independent.
  entry.tolerance = {2e-5, 1e-6};
  // On CUDA inputs are rounded to the weight's type, at worst bfloat16: an error of at most 2^-9 of the next power of
  // two, 2^-9 * 0.436 in the root mean square over [-1, 1). Times weights of 0.1 / sqrt(3) over K = 1536 terms: 1.9e-3
  // in the root mean square. A naive bfloat16 version has that and rounds the result, near 1.3, by another 2^-8 /
  // sqrt(12) = 1.1e-3: 2.2e-3. Twice the largest of its few thousand errors, near 3.5 of these: 1.5e-2. Ours is held
  // to 1.1e-2, 5.7 times its own root mean square.
  entry.cuda_tolerance = {1.1e-2, 1e-6};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<LinearCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
