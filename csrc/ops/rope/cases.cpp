#include <cmath>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  int32_t num_heads, num_kv_heads, head_dim, rotary_dim;
  bool interleaved;
};

// Halves below, at and past the 16 lanes; partial rotation; both pairings.
constexpr Variant kVariants[] = {{1, 1, 8, 8, false},   {9, 3, 64, 64, false}, {4, 2, 80, 80, false},
                                 {4, 4, 64, 32, false}, {2, 1, 128, 96, true}, {3, 1, 64, 64, true},
                                 {2, 2, 24, 6, true}};

enum : uint64_t { kQkvStream, kPositionStream };

class RopeCase : public OpCase {
 public:
  RopeCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        half_(static_cast<size_t>(variant.rotary_dim) / 2),
        width_(static_cast<size_t>(variant.num_heads + variant.num_kv_heads) * static_cast<size_t>(variant.head_dim)),
        stride_(width_ + static_cast<size_t>(variant.num_kv_heads * variant.head_dim)),
        input_(num_rows_ * stride_),
        cosine_(num_rows_ * half_),
        sine_(num_rows_ * half_) {
    for (size_t r = 0; r < num_rows_; ++r) {
      fill_row(std::span(input_).subspan(r * stride_, stride_), row_ids[r], kQkvStream, 5.0f);
      const double position = static_cast<double>(row_hash(row_ids[r], kPositionStream) % 8192);
      for (size_t i = 0; i < half_; ++i) {
        const double angle = position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half_));
        cosine_[r * half_ + i] = static_cast<float>(std::cos(angle));
        sine_[r * half_ + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  void run(ExecutionContext& context) override { context.ops.rope(prepare(), context); }
  void run_reference() override { reference::rope(prepare()); }

  // The whole fused row: queries, keys, and values that must stay as they are.
  std::span<const std::byte> output(int64_t row) const override {
    return std::as_bytes(std::span(qkv_).subspan(static_cast<size_t>(row) * stride_, stride_));
  }

 private:
  RopeParams prepare() {
    qkv_ = input_;
    RopeParams params{};
    params.query = qkv_.data();
    params.key = qkv_.data() + variant_.num_heads * variant_.head_dim;
    params.cosine = cosine_.data();
    params.sine = sine_.data();
    params.num_rows = static_cast<int64_t>(num_rows_);
    params.row_stride = static_cast<int64_t>(stride_);
    params.num_heads = variant_.num_heads;
    params.num_kv_heads = variant_.num_kv_heads;
    params.head_dim = variant_.head_dim;
    params.rotary_dim = variant_.rotary_dim;
    params.interleaved = variant_.interleaved;
    return params;
  }

  Variant variant_;
  size_t num_rows_, half_, width_, stride_;
  std::pmr::vector<float> input_, cosine_, sine_, qkv_;
};

}  // namespace

OpEntry rope_cases() {
  OpEntry entry;
  entry.name = "rope";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(variant.num_heads, "+", variant.num_kv_heads, " heads of ", variant.head_dim,
                                    ", rotary ", variant.rotary_dim, variant.interleaved ? ", interleaved" : ""));
  }
  // One product rounds before the fused sum: half a unit of up to 5, and one rounding of the result.
  entry.tolerance = {3e-7, 1.2e-7};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<RopeCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
