#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

struct Variant {
  DType dtype;
  int32_t page_size, num_kv_heads, head_dim;
};

constexpr Variant kVariants[] = {{DType::kFloat32, 16, 1, 8},   {DType::kBFloat16, 16, 3, 64},
                                 {DType::kFloat16, 20, 2, 80},  {DType::kBFloat16, 1, 1, 24},
                                 {DType::kFloat16, 32, 1, 128}, {DType::kFloat32, 16, 3, 7},
                                 {DType::kBFloat16, 5, 2, 9},   {DType::kFloat16, 16, 1, 6}};

enum : uint64_t { kKeyStream, kValueStream, kSlotStream };

class KvAppendCase : public OpCase {
 public:
  KvAppendCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        num_rows_(row_ids.size()),
        width_(static_cast<size_t>(variant.num_kv_heads * variant.head_dim)),
        element_(static_cast<size_t>(dtype_size(variant.dtype))),
        num_pages_(static_cast<int64_t>(num_rows_) / variant.page_size + 2),
        qkv_(num_rows_ * 2 * width_),
        slots_(num_rows_) {
    for (size_t r = 0; r < num_rows_; ++r) {
      // Past 65520 a float16 rounds to infinity, below 6e-8 to 0.
      fill_row(std::span(qkv_).subspan(r * 2 * width_, width_), row_ids[r], kKeyStream, 70000.0f);
      fill_row(std::span(qkv_).subspan((r * 2 + 1) * width_, width_), row_ids[r], kValueStream, 1e-4f);
      // Slots descend and leave the first and the last slot alone; one row in eight has none.
      const bool skipped = row_hash(row_ids[r], kSlotStream) % 8 == 0;
      slots_[r] = skipped ? -1 : static_cast<int64_t>(num_rows_ - r);
    }
  }

  void run(ExecutionContext& context) override {
    context.ops.kv_append(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::kv_append(prepare());
    collect();
  }

  // What the row's slot holds afterwards, keys then values, and whether slots that nobody owns are intact.
  std::span<const std::byte> output(int64_t row) const override {
    const size_t size = 2 * width_ * element_ + 1;
    return std::span(result_).subspan(static_cast<size_t>(row) * size, size);
  }

 private:
  KvCacheView cache() {
    return {key_.data(),        value_.data(),         variant_.dtype,    num_pages_,
            variant_.page_size, variant_.num_kv_heads, variant_.head_dim, case_layouts().keys};
  }

  KvAppendParams prepare() {
    const size_t size = static_cast<size_t>(num_pages_ * variant_.page_size) * width_ * element_;
    key_.assign(size, std::byte{0xff});
    value_.assign(size, std::byte{0xff});
    KvAppendParams params{};
    params.key = qkv_.data();
    params.value = qkv_.data() + width_;
    params.slots = slots_.data();
    params.cache = cache();
    params.num_rows = static_cast<int64_t>(num_rows_);
    params.row_stride = static_cast<int64_t>(2 * width_);
    return params;
  }

  void collect() {
    result_.clear();
    const std::byte intact{unwritten_slots_are_intact()};
    for (size_t r = 0; r < num_rows_; ++r) {
      const int64_t slot = slots_[r] < 0 ? 0 : slots_[r];
      const int64_t page = slot / variant_.page_size, offset = slot % variant_.page_size;
      for (int64_t i = 0; i < 2 * static_cast<int64_t>(width_); ++i) {
        const int64_t head = i / variant_.head_dim % variant_.num_kv_heads, d = i % variant_.head_dim;
        const bool is_key = i < static_cast<int64_t>(width_);
        const int64_t index =
            is_key ? cache().key_index(page, head, d, offset) : cache().value_index(page, head, offset, d);
        const std::byte* source = (is_key ? key_ : value_).data() + static_cast<size_t>(index) * element_;
        result_.insert(result_.end(), source, source + element_);
      }
      result_.push_back(intact);
    }
  }

  // Slots that no row owns are still 0xff: slot 0, and everything past the last.
  bool unwritten_slots_are_intact() {
    for (int64_t slot : {int64_t{0}, num_pages_ * variant_.page_size - 1}) {
      const int64_t page = slot / variant_.page_size, offset = slot % variant_.page_size;
      for (int64_t d = 0; d < variant_.head_dim; ++d) {
        for (size_t b = 0; b < element_; ++b) {
          if (key_[static_cast<size_t>(cache().key_index(page, 0, d, offset)) * element_ + b] != std::byte{0xff} ||
              value_[static_cast<size_t>(cache().value_index(page, 0, offset, d)) * element_ + b] != std::byte{0xff}) {
            return false;
          }
        }
      }
    }
    return true;
  }

  Variant variant_;
  size_t num_rows_, width_, element_;
  int64_t num_pages_;
  std::pmr::vector<float> qkv_;
  std::pmr::vector<int64_t> slots_;
  std::pmr::vector<std::byte> key_, value_, result_;
};

}  // namespace

OpEntry kv_append_cases() {
  OpEntry entry;
  entry.name = "kv_append";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(dtype_name(variant.dtype), " ", variant.num_kv_heads, " heads of ",
                                    variant.head_dim, ", page ", variant.page_size));
  }
  entry.integer_output = true;  // rounding is exact
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<KvAppendCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
