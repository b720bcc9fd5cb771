#include "model/forward_batch.h"

#include <algorithm>

#include "base/check.h"

namespace eagle31rt {

BatchView ForwardBatch::view() const {
  return {.token_ids = token_ids.data(),
          .positions = positions.data(),
          .slots = slots.data(),
          .row_begin = row_begin.data(),
          .kv_begin = kv_begin.data(),
          .kv_length = kv_length.data(),
          .page_table = page_table.data(),
          .page_table_stride = page_table_stride,
          .num_rows = num_rows(),
          .num_requests = num_requests()};
}

void ForwardBatch::clear(int32_t new_page_table_stride) {
  token_ids.clear();
  positions.clear();
  slots.clear();
  row_begin.assign(1, 0);
  kv_begin.clear();
  kv_length.clear();
  page_table.clear();
  page_table_stride = new_page_table_stride;
}

void ForwardBatch::add_request(std::span<const int32_t> tokens, std::span<const int32_t> pages, int32_t page_size,
                               int32_t first_entry, int32_t first_visible_entry, int32_t position_offset,
                               const EntryRange& writable) {
  E31_INVARIANT(static_cast<int32_t>(pages.size()) <= page_table_stride);
  for (size_t row = 0; row < tokens.size(); ++row) {
    const int32_t entry = first_entry + static_cast<int32_t>(row);
    token_ids.push_back(tokens[row]);
    positions.push_back(entry + position_offset);
    if (entry < writable.begin || entry >= writable.end) {
      slots.push_back(-1);
      continue;
    }
    const size_t page = static_cast<size_t>(entry / page_size);
    E31_INVARIANT(page < pages.size());
    slots.push_back(int64_t{pages[page]} * page_size + entry % page_size);
  }
  row_begin.push_back(static_cast<int32_t>(token_ids.size()));
  kv_begin.push_back(first_visible_entry);
  kv_length.push_back(first_entry);
  page_table.insert(page_table.end(), pages.begin(), pages.end());
  page_table.resize(static_cast<size_t>(num_requests() * page_table_stride), 0);
}

}  // namespace eagle31rt
