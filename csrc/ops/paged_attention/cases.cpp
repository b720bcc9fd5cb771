#include <cmath>
#include <limits>

#include "base/check.h"
#include "device/execution_context.h"
#include "ops/op_cases.h"
#include "ops/ops.h"

namespace eagle31rt {

namespace {

// Every row id is a request of its own, or a sibling in one tree over a shared context of `context` entries.
struct Variant {
  DType dtype;
  int32_t page_size, num_heads, num_kv_heads, head_dim;
  int32_t context;  // 0: requests of their own
};

constexpr Variant kVariants[] = {
    {DType::kFloat32, 16, 3, 1, 64, 0},   {DType::kBFloat16, 16, 3, 1, 64, 0},   {DType::kFloat16, 20, 2, 2, 24, 0},
    {DType::kFloat32, 1, 4, 1, 8, 0},     {DType::kBFloat16, 32, 2, 1, 80, 0},   {DType::kBFloat16, 16, 3, 1, 64, 63},
    {DType::kFloat32, 20, 2, 1, 24, 150}, {DType::kFloat16, 16, 64, 1, 128, 64},
};

enum : uint64_t { kQueryStream, kKvStream, kContextStream, kLengthStream };

struct Request {
  int32_t kv_begin, kv_length, num_rows;
};

// Lengths just below, at and above the boundaries of splits, and others; one to three rows.
Request request_of(uint64_t row_id) {
  const uint64_t bits = row_hash(row_id, kLengthStream);
  const auto boundary = static_cast<int32_t>(bits % 3) * kAttentionSplit + static_cast<int32_t>(bits / 3 % 3) - 1;
  const auto other = static_cast<int32_t>(bits / 16 % 150);
  const int32_t length = bits / 9 % 2 == 0 && boundary >= 0 ? boundary : other;
  return {length > 0 ? static_cast<int32_t>(bits >> 32) & 1 : 0, length, static_cast<int32_t>(bits >> 40) % 3 + 1};
}

class PagedAttentionCase : public OpCase {
 public:
  PagedAttentionCase(const Variant& variant, std::span<const uint64_t> row_ids)
      : variant_(variant),
        query_width_(static_cast<size_t>(variant.num_heads * variant.head_dim)),
        kv_width_(static_cast<size_t>(variant.num_kv_heads * variant.head_dim)) {
    if (variant.context == 0) {
      for (uint64_t id : row_ids) requests_.push_back(request_of(id));
    } else {
      requests_.push_back({0, variant.context, static_cast<int32_t>(row_ids.size())});
      make_sibling_masks(row_ids.size());
    }
    make_pages();
    for (size_t i = 0; i < requests_.size(); ++i) {
      append_entries(i, variant.context == 0 ? row_ids[i] : 0, 0, requests_[i].kv_length,
                     variant.context == 0 ? kKvStream : kContextStream);
      if (variant.context == 0) append_entries(i, row_ids[i], requests_[i].kv_length, requests_[i].num_rows, kKvStream);
    }
    for (size_t r = 0; r < row_ids.size(); ++r) {
      if (variant.context != 0) append_entries(0, row_ids[r], variant.context + static_cast<int32_t>(r), 1, kKvStream);
      const size_t count = variant.context == 0 ? static_cast<size_t>(requests_[r].num_rows) : 1;
      query_.resize(query_.size() + count * query_width_);
      fill_row(std::span(query_).last(count * query_width_), row_ids[r], kQueryStream, 4.0f);
      output_begin_.push_back(query_.size() - count * query_width_);
    }
    output_begin_.push_back(query_.size());
  }

  void run(ExecutionContext& context) override { context.ops.paged_attention(prepare(), context); }
  void run_reference() override { reference::paged_attention(prepare()); }

  std::span<const std::byte> output(int64_t row) const override {
    const size_t r = static_cast<size_t>(row);
    return std::as_bytes(std::span(output_).subspan(output_begin_[r], output_begin_[r + 1] - output_begin_[r]));
  }

 private:
  void make_sibling_masks(size_t num_rows) {
    mask_words_ = (num_rows + 63) / 64;
    mask_.assign(num_rows * mask_words_, 0);
    for (size_t r = 0; r < num_rows; ++r) mask_[r * mask_words_ + r / 64] = uint64_t{1} << (r % 64);
  }

  // Pages are dealt out in a scattered order; table entries past a request's end and unwritten cache entries are
  // poison.
  void make_pages() {
    int64_t needed = 0;
    row_begin_.push_back(0);
    for (const Request& request : requests_) {
      const int32_t pages = (request.kv_length + request.num_rows + variant_.page_size - 1) / variant_.page_size;
      needed += pages;
      table_stride_ = pages + 1 > table_stride_ ? pages + 1 : table_stride_;
      row_begin_.push_back(row_begin_.back() + request.num_rows);
      kv_begin_.push_back(request.kv_begin);
      kv_length_.push_back(request.kv_length);
    }
    constexpr int64_t kStep = 7919;  // a prime: page numbers k * kStep mod num_pages are all different
    num_pages_ = needed % kStep == 0 ? needed + 1 : needed;
    page_table_.assign(requests_.size() * static_cast<size_t>(table_stride_), std::numeric_limits<int32_t>::max());
    int64_t dealt = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const int32_t end = requests_[i].kv_length + requests_[i].num_rows;
      for (int32_t t = 0; t < end; t += variant_.page_size) {
        page_table_[i * static_cast<size_t>(table_stride_) + static_cast<size_t>(t / variant_.page_size)] =
            static_cast<int32_t>(dealt++ * kStep % num_pages_);
      }
    }
    const size_t bytes = static_cast<size_t>(num_pages_ * variant_.page_size) * kv_width_ *
                         static_cast<size_t>(dtype_size(variant_.dtype));
    key_.assign(bytes, std::byte{0xff});  // a NaN in every dtype
    value_.assign(bytes, std::byte{0xff});
  }

  // Writes entries first .. first + count - 1 of request i, made from row_id and the entry's number.
  void append_entries(size_t i, uint64_t row_id, int32_t first, int32_t count, uint64_t stream) {
    std::pmr::vector<float> kv(static_cast<size_t>(count) * 2 * kv_width_);
    std::pmr::vector<int64_t> slots;
    for (int32_t n = 0; n < count; ++n) {
      const int32_t t = first + n;
      const uint64_t entry = variant_.context == 0 || stream == kContextStream ? static_cast<uint64_t>(t) : 0;
      fill_row(std::span(kv).subspan(static_cast<size_t>(n) * 2 * kv_width_, 2 * kv_width_), row_id,
               stream + 16 * (entry + 1));
      const size_t page = static_cast<size_t>(t / variant_.page_size);
      slots.push_back(int64_t{page_table_[i * static_cast<size_t>(table_stride_) + page]} * variant_.page_size +
                      t % variant_.page_size);
      if (t < kv_begin_[i]) slots.back() = -1;
    }
    KvAppendParams params{};
    params.key = kv.data();
    params.value = kv.data() + kv_width_;
    params.slots = slots.data();
    params.cache = cache();
    params.num_rows = count;
    params.row_stride = static_cast<int64_t>(2 * kv_width_);
    reference::kv_append(params);
  }

  KvCacheView cache() {
    return {key_.data(),        value_.data(),         variant_.dtype,    num_pages_,
            variant_.page_size, variant_.num_kv_heads, variant_.head_dim, case_layouts().keys};
  }

  PagedAttentionParams prepare() {
    output_.assign(query_.size(), -1234.5f);
    PagedAttentionParams params{};
    params.query = query_.data();
    params.output = output_.data();
    params.cache = cache();
    params.page_table = page_table_.data();
    params.row_begin = row_begin_.data();
    params.kv_begin = kv_begin_.data();
    params.kv_length = kv_length_.data();
    params.ancestor_mask = mask_.empty() ? nullptr : mask_.data();
    params.num_requests = static_cast<int64_t>(requests_.size());
    params.num_rows = row_begin_.back();
    params.query_stride = static_cast<int64_t>(query_width_);
    params.page_table_stride = table_stride_;
    params.mask_words = static_cast<int32_t>(mask_words_);
    params.num_heads = variant_.num_heads;
    params.scale = 1.0f / std::sqrt(static_cast<float>(variant_.head_dim));
    return params;
  }

  Variant variant_;
  size_t query_width_, kv_width_, mask_words_ = 0;
  std::pmr::vector<Request> requests_;
  std::pmr::vector<float> query_, output_;
  std::pmr::vector<size_t> output_begin_;
  std::pmr::vector<int32_t> page_table_, row_begin_, kv_begin_, kv_length_;
  std::pmr::vector<uint64_t> mask_;
  std::pmr::vector<std::byte> key_, value_;
  int64_t num_pages_ = 0;
  int32_t table_stride_ = 0;
};

std::string describe(const Variant& v) {
  return concat(dtype_name(v.dtype), " page ", v.page_size, ", ", v.num_heads, "/", v.num_kv_heads, " heads of ",
                v.head_dim, v.context == 0 ? "" : concat(", siblings after ", v.context));
}

}  // namespace

OpEntry paged_attention_cases() {
  OpEntry entry;
  entry.name = "paged_attention";
  for (const Variant& variant : kVariants) entry.variants.push_back(describe(variant));
  // Scores up to about 6 with an error near 1e-6, which is the relative error of a weight; values are at most 1.
  entry.tolerance = {2e-6, 0};
  entry.make = [](int variant, std::span<const uint64_t> row_ids) -> std::unique_ptr<OpCase> {
    return std::make_unique<PagedAttentionCase>(kVariants[variant], row_ids);
  };
  return entry;
}

}  // namespace eagle31rt
