#include <cmath>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/ops.h"
#include "ops/paged_attention/attention_case.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int32_t page_size, num_heads, latent_dim, rope_dim;
  int32_t context;  // 0: requests of their own
};

constexpr Variant kVariants[] = {
    {DType::kFloat32, 16, 3, 32, 16, 0},    {DType::kBFloat16, 16, 4, 32, 16, 0}, {DType::kFloat16, 20, 3, 40, 8, 0},
    {DType::kBFloat16, 16, 20, 64, 16, 63}, {DType::kFloat32, 1, 9, 24, 8, 150},  {DType::kBFloat16, 32, 5, 512, 64, 0},
};

AttentionCase::Shape shape_of(const Variant& v) {
  return {v.page_size, v.context, static_cast<size_t>(v.num_heads * (v.latent_dim + v.rope_dim)),
          static_cast<size_t>(v.num_heads * v.latent_dim)};
}

class MlaAttentionCase : public AttentionCase {
 public:
  MlaAttentionCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : AttentionCase(shape_of(variant), row_ids), variant_(variant) {
    const auto entries = static_cast<size_t>(num_pages() * variant.page_size);
    data_.assign(entries * entry_dim() * static_cast<size_t>(dtype_size(variant.dtype)), std::byte{0xff});  // NaN
    append_entries(row_ids, [&](const std::pmr::vector<int64_t>& slots, uint64_t row_id, uint64_t stream) {
      append(slots, row_id, stream);
    });
  }

  void run(ExecutionContext& context) override { context.ops.mla_attention(parameters(), context); }
  void run_reference() override { reference::mla_attention(parameters()); }

 private:
  size_t entry_dim() const { return static_cast<size_t>(variant_.latent_dim + variant_.rope_dim); }

  void append(const std::pmr::vector<int64_t>& slots, uint64_t row_id, uint64_t stream) {
    std::pmr::vector<float> entries(slots.size() * entry_dim());
    for (size_t n = 0; n < slots.size(); ++n) {
      fill_row(std::span(entries).subspan(n * entry_dim(), entry_dim()), row_id, stream + 16 * n);
    }
    MlaAppendParams params{};
    params.entries = entries.data();
    params.slots = slots.data();
    params.cache = cache();
    params.num_rows = static_cast<int64_t>(slots.size());
    params.row_stride = static_cast<int64_t>(entry_dim());
    reference::mla_append(params);
  }

  LatentCacheView cache() {
    return {data_.data(), variant_.dtype, num_pages(), variant_.page_size, variant_.latent_dim, variant_.rope_dim};
  }

  MlaAttentionParams parameters() {
    auto params = prepare<MlaAttentionParams>();
    params.cache = cache();
    params.num_heads = variant_.num_heads;
    params.scale = 1.0f / std::sqrt(static_cast<float>(entry_dim()));
    return params;
  }

  Variant variant_;
  std::pmr::vector<std::byte> data_;
};

std::string describe(const Variant& v) {
  return concat(dtype_name(v.dtype), " page ", v.page_size, ", ", v.num_heads, " heads of ", v.latent_dim, "+",
                v.rope_dim, v.context == 0 ? "" : concat(", siblings after ", v.context));
}

}  // namespace

OpEntry mla_attention_cases() {
  OpEntry entry;
  entry.name = "mla_attention";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  entry.tolerance = {2e-6, 0};  // as paged_attention
  entry.cuda_tolerance = {8e-3, 0};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<MlaAttentionCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
