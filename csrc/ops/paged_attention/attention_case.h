// What the cases of the attention operators share: requests, pages, masks and queries.
//
// Every row id is a request of its own, or a sibling in one tree over a shared context of `context` entries.
#pragma once

#include <limits>
#include <utility>

#include "ops/op_cases.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt {

class AttentionCase : public OpCase {
 public:
  struct Shape {
    int32_t page_size;
    int32_t context;  // 0: requests of their own
    size_t query_width, output_width;
  };

  std::span<const std::byte> output(int64_t row) const override {
    const size_t r = static_cast<size_t>(row), begin = first_row_[r] * shape_.output_width;
    return std::as_bytes(std::span(output_).subspan(begin, first_row_[r + 1] * shape_.output_width - begin));
  }

 protected:
  AttentionCase(const Shape& shape, std::span<const uint64_t> row_ids) : shape_(shape) {
    for (uint64_t id : row_ids) {
      if (shape.context == 0) requests_.push_back(request_of(id));
      const auto count = shape.context == 0 ? static_cast<size_t>(requests_.back().num_rows) : 1;
      query_.resize(query_.size() + count * shape.query_width);
      fill_row(std::span(query_).last(count * shape.query_width), id, kQueryStream, 4.0f);
      first_row_.push_back(query_.size() / shape.query_width - count);
    }
    first_row_.push_back(query_.size() / shape.query_width);
    if (shape.context != 0) {
      requests_.push_back({0, shape.context, static_cast<int32_t>(row_ids.size())});
      make_sibling_masks(row_ids.size());
    }
    deal_pages();
  }

  int64_t num_pages() const { return num_pages_; }

  // Calls append(slots, row_id, stream): entry n of the run goes to slots[n] and is filled from the row id and stream
  // stream + 16 n. A negative slot is never written.
  template <typename Append>
  void append_entries(std::span<const uint64_t> row_ids, Append append) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Request& request = requests_[i];
      const uint64_t stream = shape_.context == 0 ? kKvStream : kContextStream;
      append(slots_of(i, 0, request.kv_length), shape_.context == 0 ? row_ids[i] : 0, stream);
      for (int32_t j = 0; j < request.num_rows; ++j) {
        const auto n = static_cast<uint64_t>(shape_.context == 0 ? request.kv_length + j : 0);
        append(slots_of(i, request.kv_length + j, 1), row_ids[shape_.context == 0 ? i : static_cast<size_t>(j)],
               kKvStream + 16 * n);
      }
    }
  }

  // Everything but the cache and the heads.
  template <typename Params>
  Params prepare() {
    output_.assign(first_row_.back() * shape_.output_width, -1234.5f);
    Params params{};
    params.query = query_.data();
    params.output = output_.data();
    params.page_table = page_table_.data();
    params.row_begin = row_begin_.data();
    params.kv_begin = kv_begin_.data();
    params.kv_length = kv_length_.data();
    params.ancestor_mask = mask_.empty() ? nullptr : mask_.data();
    params.num_requests = static_cast<int64_t>(requests_.size());
    params.num_rows = row_begin_.back();
    params.query_stride = static_cast<int64_t>(shape_.query_width);
    params.page_table_stride = table_stride_;
    params.mask_words = static_cast<int32_t>(mask_words_);
    return params;
  }

 private:
  enum : uint64_t { kQueryStream, kKvStream, kContextStream, kLengthStream };

  struct Request {
    int32_t kv_begin, kv_length, num_rows;
  };

  // Lengths just below, at and above the boundaries of splits, and others; one to three rows.
  static Request request_of(uint64_t row_id) {
    const uint64_t bits = row_hash(row_id, kLengthStream);
    const auto boundary = static_cast<int32_t>(bits % 3) * kAttentionSplit + static_cast<int32_t>(bits / 3 % 3) - 1;
    const auto other = static_cast<int32_t>(bits / 16 % 150);
    const int32_t length = bits / 9 % 2 == 0 && boundary >= 0 ? boundary : other;
    return {length > 0 ? static_cast<int32_t>(bits >> 32) & 1 : 0, length, static_cast<int32_t>(bits >> 40) % 3 + 1};
  }

  void make_sibling_masks(size_t num_rows) {
    mask_words_ = (num_rows + 63) / 64;
    mask_.assign(num_rows * mask_words_, 0);
    for (size_t r = 0; r < num_rows; ++r) mask_[r * mask_words_ + r / 64] = uint64_t{1} << (r % 64);
  }

  // In a scattered order; table entries past a request's end are poison.
  void deal_pages() {
    int64_t needed = 0;
    row_begin_.push_back(0);
    for (const Request& request : requests_) {
      const int32_t pages = (request.kv_length + request.num_rows + shape_.page_size - 1) / shape_.page_size;
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
      for (int32_t t = 0; t < end; t += shape_.page_size) {
        page_table_[i * static_cast<size_t>(table_stride_) + static_cast<size_t>(t / shape_.page_size)] =
            static_cast<int32_t>(dealt++ * kStep % num_pages_);
      }
    }
  }

  std::pmr::vector<int64_t> slots_of(size_t request, int32_t first, int32_t count) const {
    std::pmr::vector<int64_t> slots;
    for (int32_t t = first; t < first + count; ++t) {
      const size_t entry = request * static_cast<size_t>(table_stride_) + static_cast<size_t>(t / shape_.page_size);
      slots.push_back(t < kv_begin_[request] ? -1
                                             : int64_t{page_table_[entry]} * shape_.page_size + t % shape_.page_size);
    }
    return slots;
  }

  Shape shape_;
  size_t mask_words_ = 0;
  std::vector<Request> requests_;
  std::vector<size_t> first_row_;  // of each row id
  std::pmr::vector<float> query_, output_;
  std::pmr::vector<int32_t> page_table_, row_begin_, kv_begin_, kv_length_;
  std::pmr::vector<uint64_t> mask_;
  int64_t num_pages_ = 0;
  int32_t table_stride_ = 0;
};

}  // namespace eagle31rt
