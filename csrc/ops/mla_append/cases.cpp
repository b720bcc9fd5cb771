#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int32_t page_size, latent_dim, rope_dim;
};

constexpr Variant kVariants[] = {{DType::kFloat32, 16, 8, 8},  {DType::kBFloat16, 16, 512, 64},
                                 {DType::kFloat16, 20, 33, 9}, {DType::kBFloat16, 1, 32, 16},
                                 {DType::kFloat32, 5, 6, 1},   {DType::kBFloat16, 16, 17, 4}};

enum : uint64_t { kEntryStream, kSlotStream };

class MlaAppendCase : public OpCase {
 public:
  MlaAppendCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        width_(static_cast<size_t>(variant.latent_dim + variant.rope_dim)),
        entry_bytes_(width_ * static_cast<size_t>(dtype_size(variant.dtype))),
        num_pages_(static_cast<int64_t>(row_ids.size()) / variant.page_size + 2),
        entries_(row_ids.size() * width_) {
    for (size_t r = 0; r < row_ids.size(); ++r) {
      // Past 65520 a float16 rounds to infinity.
      fill_row(std::span(entries_).subspan(r * width_, width_), row_ids[r], kEntryStream, 70000.0f);
      // Slots descend and leave slot 0 alone; one row in eight has none.
      const bool skipped = row_hash(row_ids[r], kSlotStream) % 8 == 0;
      slots_.push_back(skipped ? -1 : static_cast<int64_t>(row_ids.size() - r));
    }
  }

  void run(ExecutionContext& context) override { context.ops.mla_append(prepare(), context); }
  void run_reference() override { reference::mla_append(prepare()); }

  // What the row's slot holds afterwards; of a row without one, slot 0, which nobody may write.
  std::span<const std::byte> output(int64_t row) const override {
    const int64_t slot = slots_[static_cast<size_t>(row)];
    return std::span(data_).subspan(static_cast<size_t>(slot < 0 ? 0 : slot) * entry_bytes_, entry_bytes_);
  }

 private:
  MlaAppendParams prepare() {
    data_.assign(static_cast<size_t>(num_pages_ * variant_.page_size) * entry_bytes_, std::byte{0xff});
    MlaAppendParams params{};
    params.entries = entries_.data();
    params.slots = slots_.data();
    params.cache = {data_.data(),       variant_.dtype,      num_pages_,
                    variant_.page_size, variant_.latent_dim, variant_.rope_dim};
    params.num_rows = static_cast<int64_t>(slots_.size());
    params.row_stride = static_cast<int64_t>(width_);
    return params;
  }

  Variant variant_;
  size_t width_, entry_bytes_;
  int64_t num_pages_;
  std::pmr::vector<float> entries_;
  std::pmr::vector<int64_t> slots_;
  std::pmr::vector<std::byte> data_;
};

}  // namespace

OpEntry mla_append_cases() {
  OpEntry entry;
  entry.name = "mla_append";
  for (const Variant& v : kVariants) {
    entry.variants.push_back(concat(dtype_name(v.dtype), " ", v.latent_dim, "+", v.rope_dim, ", page ", v.page_size));
  }
  entry.integer_output = true;  // rounding is exact
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<MlaAppendCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
