// One row of a case is one request: a tree of up to 12 rows in slots of its own pages, and a path through it.
#include <algorithm>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

constexpr int32_t kMaxRows = 12;

enum Stream : uint64_t { kShape, kPath, kContent };

struct Variant {
  DType dtype;
  int32_t page_size, num_kv_heads, head_dim, num_layers;  // 0 layers: one view, no list
};
constexpr Variant kVariants[] = {{DType::kBFloat16, 16, 3, 64, 0},
                                 {DType::kFloat32, 4, 2, 8, 2},
                                 {DType::kFloat16, 5, 1, 80, 3},
                                 {DType::kBFloat16, 1, 2, 24, 1}};

class CompactKvCase : public OpCase {
 public:
  CompactKvCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        layout_(case_layouts().keys),
        entry_bytes_(static_cast<size_t>(variant.num_kv_heads * variant.head_dim * dtype_size(variant.dtype))),
        pages_per_request_((2 * variant.page_size + kMaxRows - 2) / variant.page_size),
        row_ids_(row_ids.begin(), row_ids.end()) {
    for (size_t i = 0; i < row_ids.size(); ++i) add_request(static_cast<int64_t>(i), row_ids[i]);
    const size_t size = row_ids.size() * static_cast<size_t>(pages_per_request_ * variant.page_size) * entry_bytes_;
    for (int32_t buffer = 0; buffer < 2 * std::max(variant.num_layers, 1); ++buffer) caches_.emplace_back(size);
    for (size_t layer = 0; layer < caches_.size() / 2; ++layer) {
      layers_.push_back({caches_[2 * layer].data(), caches_[2 * layer + 1].data(), variant.dtype,
                         static_cast<int64_t>(row_ids.size()) * pages_per_request_, variant.page_size,
                         variant.num_kv_heads, variant.head_dim, layout_});
    }
  }

  void run(ExecutionContext& context) override {
    context.ops.compact_kv(prepare(), context);
    wait_for_device(context);
    collect();
  }
  void run_reference() override {
    reference::compact_kv(prepare());
    collect();
  }
  std::span<const std::byte> output(int64_t row) const override { return outputs_[static_cast<size_t>(row)]; }

 private:
  void add_request(int64_t index, uint64_t id) {
    const uint64_t shape = row_hash(id, kShape), path = row_hash(id, kPath);
    const int32_t num_rows = 1 + static_cast<int32_t>(shape % kMaxRows);
    const int64_t first_entry = static_cast<int64_t>((shape >> 8) % static_cast<uint64_t>(variant_.page_size));
    int32_t num_accepted = -1;
    for (int32_t r = 0; r < num_rows; ++r) {
      const int64_t entry = first_entry + r, page = entry / variant_.page_size;
      // Pages of a request descend; one row in 32 has no slot.
      const int64_t slot =
          ((index + 1) * pages_per_request_ - 1 - page) * variant_.page_size + entry % variant_.page_size;
      slots_.push_back(r > 0 && (shape >> (16 + r)) % 32 == 0 ? -1 : slot);
      path_rows_.push_back(-1);
      if (r == 0 || path >> r & 1) path_rows_[static_cast<size_t>(row_begin_.back() + ++num_accepted)] = r;
    }
    num_accepted_.push_back((shape >> 40) % 8 == 0 ? -1 : num_accepted);
    row_begin_.push_back(static_cast<int32_t>(slots_.size()));
  }

  CompactKvParams prepare() {
    for (size_t buffer = 0; buffer < caches_.size(); ++buffer) {
      const size_t per_request = caches_[buffer].size() / row_ids_.size();
      for (size_t i = 0; i < caches_[buffer].size(); ++i) {
        const uint64_t place = i % per_request / 8;
        const uint64_t bits = row_hash(row_ids_[i / per_request], kContent + buffer + 64 * place);
        caches_[buffer][i] = static_cast<std::byte>(bits >> (8 * (i % 8)));
      }
    }
    return {.cache = layers_[0],
            .layers = variant_.num_layers == 0 ? nullptr : layers_.data(),
            .row_begin = row_begin_.data(),
            .slots = slots_.data(),
            .num_accepted = num_accepted_.data(),
            .path_rows = path_rows_.data(),
            .num_requests = static_cast<int64_t>(row_ids_.size()),
            .num_layers = variant_.num_layers};
  }

  // All pages of a request in all layers: what had to move and what must not.
  void collect() {
    outputs_.assign(row_ids_.size(), {});
    for (size_t i = 0; i < row_ids_.size(); ++i) {
      for (const auto& cache : caches_) {
        const auto begin = cache.begin() + static_cast<int64_t>(i * (cache.size() / row_ids_.size()));
        outputs_[i].insert(outputs_[i].end(), begin, begin + static_cast<int64_t>(cache.size() / row_ids_.size()));
      }
    }
  }

  Variant variant_;
  KeyLayout layout_;
  size_t entry_bytes_;
  int64_t pages_per_request_;
  std::vector<uint64_t> row_ids_;
  std::pmr::vector<int32_t> row_begin_ = {0}, num_accepted_, path_rows_;
  std::pmr::vector<int64_t> slots_;
  std::vector<std::pmr::vector<std::byte>> caches_;  // keys and values of each layer
  std::pmr::vector<KvCacheView> layers_;
  std::vector<std::vector<std::byte>> outputs_;
};

}  // namespace

OpEntry compact_kv_cases() {
  OpEntry entry;
  entry.name = "compact_kv";
  for (const Variant& variant : kVariants) {
    entry.variants.push_back(concat(dtype_name(variant.dtype), " ", variant.num_kv_heads, " heads of ",
                                    variant.head_dim, ", page ", variant.page_size, ", ", variant.num_layers,
                                    " listed layers"));
  }
  entry.integer_output = true;
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<CompactKvCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
