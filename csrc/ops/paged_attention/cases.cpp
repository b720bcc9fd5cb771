#include <cmath>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/ops.h"
#include "ops/paged_attention/attention_case.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int32_t page_size, num_heads, num_kv_heads, head_dim;
  int32_t context;  // 0: requests of their own
  int32_t sliding_window = 0;
  bool has_sinks = false;
};

constexpr Variant kVariants[] = {
    {DType::kFloat32, 16, 3, 1, 64, 0},
    {DType::kBFloat16, 16, 3, 1, 64, 0},
    {DType::kFloat16, 20, 2, 2, 24, 0},
    {DType::kFloat32, 1, 4, 1, 8, 0},
    {DType::kBFloat16, 32, 2, 1, 80, 0},
    {DType::kBFloat16, 16, 3, 1, 64, 63},
    {DType::kFloat32, 20, 2, 1, 24, 150},
    {DType::kFloat16, 16, 64, 1, 128, 64},
    // Windows within a split, over one and over several, for causal rows and for a tree; gpt_oss has windows and sinks.
    {DType::kFloat32, 16, 3, 1, 64, 0, 5},
    {DType::kBFloat16, 16, 4, 2, 64, 0, 70, true},
    {DType::kFloat16, 20, 2, 2, 24, 0, 64},
    {DType::kFloat32, 20, 2, 1, 24, 150, 90, true},
    {DType::kBFloat16, 16, 3, 1, 64, 130, 3},
    {DType::kFloat16, 16, 4, 1, 128, 0, 0, true},
};

AttentionCase::Shape shape_of(const Variant& v) {
  const auto width = static_cast<size_t>(v.num_heads * v.head_dim);
  return {v.page_size, v.context, width, width};
}

class PagedAttentionCase : public AttentionCase {
 public:
  PagedAttentionCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : AttentionCase(shape_of(variant), row_ids),
        variant_(variant),
        kv_width_(static_cast<size_t>(variant.num_kv_heads * variant.head_dim)) {
    const auto entries = static_cast<size_t>(num_pages() * variant.page_size);
    const size_t bytes = entries * kv_width_ * static_cast<size_t>(dtype_size(variant.dtype));
    sinks_.resize(static_cast<size_t>(variant.num_heads));
    fill_row(sinks_, 0, kSinkStream, 3.0f);
    key_.assign(bytes, std::byte{0xff});  // a NaN in every dtype
    value_.assign(bytes, std::byte{0xff});
    append_entries(row_ids, [&](const std::pmr::vector<int64_t>& slots, uint64_t row_id, uint64_t stream) {
      append(slots, row_id, stream);
    });
  }

  void run(ExecutionContext& context) override { context.ops.paged_attention(parameters(), context); }
  void run_reference() override { reference::paged_attention(parameters()); }

 private:
  enum : uint64_t { kSinkStream = 1 << 20 };  // past those of the base class

  void append(const std::pmr::vector<int64_t>& slots, uint64_t row_id, uint64_t stream) {
    std::pmr::vector<float> kv(slots.size() * 2 * kv_width_);
    for (size_t n = 0; n < slots.size(); ++n) {
      fill_row(std::span(kv).subspan(n * 2 * kv_width_, 2 * kv_width_), row_id, stream + 16 * n);
    }
    KvAppendParams params{};
    params.key = kv.data();
    params.value = kv.data() + kv_width_;
    params.slots = slots.data();
    params.cache = cache();
    params.num_rows = static_cast<int64_t>(slots.size());
    params.row_stride = static_cast<int64_t>(2 * kv_width_);
    reference::kv_append(params);
  }

  KvCacheView cache() {
    return {key_.data(),        value_.data(),         variant_.dtype,    num_pages(),
            variant_.page_size, variant_.num_kv_heads, variant_.head_dim, case_layouts().keys};
  }

  PagedAttentionParams parameters() {
    auto params = prepare<PagedAttentionParams>();
    params.cache = cache();
    params.num_heads = variant_.num_heads;
    params.sinks = variant_.has_sinks ? sinks_.data() : nullptr;
    params.sliding_window = variant_.sliding_window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(variant_.head_dim));
    return params;
  }

  Variant variant_;
  size_t kv_width_;
  std::pmr::vector<float> sinks_;
  std::pmr::vector<std::byte> key_, value_;
};

std::string describe(const Variant& v) {
  return concat(dtype_name(v.dtype), " page ", v.page_size, ", ", v.num_heads, "/", v.num_kv_heads, " heads of ",
                v.head_dim, v.context == 0 ? "" : concat(", siblings after ", v.context),
                v.sliding_window == 0 ? "" : concat(", window of ", v.sliding_window), v.has_sinks ? ", sinks" : "");
}

}  // namespace

OpEntry paged_attention_cases() {
  OpEntry entry;
  entry.name = "paged_attention";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  // Scores up to about 6 with an error near 1e-6, which is the relative error of a weight; values are at most 1.
  entry.tolerance = {2e-6, 0};
  // bfloat16 queries and weights: at most 4e-3 here; a naive bfloat16 version errs by up to 6e-3.
  entry.cuda_tolerance = {8e-3, 0};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<PagedAttentionCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
