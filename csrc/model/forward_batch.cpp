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
          .num_requests = num_requests(),
          .ancestor_mask = ancestor_mask.data(),
          .tree_row_begin = tree_row_begin.data(),
          .mask_words = mask_words,
          .num_trees = static_cast<int64_t>(tree_row_begin.size()) - 1};
}

BatchView BatchView::without_trees() const {
  BatchView part = *this;
  part.num_requests -= num_trees;
  part.num_trees = 0;
  if (num_trees > 0) part.num_rows -= tree_row_begin[num_trees];
  return part;
}

BatchView BatchView::trees() const {
  BatchView part = *this;
  part.num_requests = num_trees;
  if (num_trees == 0) {
    part.num_rows = 0;
    return part;
  }
  const int64_t first = num_requests - num_trees, first_row = num_rows - tree_row_begin[num_trees];
  part.token_ids += first_row;
  part.positions += first_row;
  part.slots += first_row;
  part.row_begin = tree_row_begin;
  part.kv_begin += first;
  part.kv_length += first;
  part.page_table += first * page_table_stride;
  part.num_rows = tree_row_begin[num_trees];
  return part;
}

void ForwardBatch::clear(int32_t new_page_table_stride, int32_t new_mask_words) {
  token_ids.clear();
  positions.clear();
  slots.clear();
  row_begin.assign(1, 0);
  kv_begin.clear();
  kv_length.clear();
  page_table.clear();
  page_table_stride = new_page_table_stride;
  ancestor_mask.clear();
  tree_row_begin.assign(1, 0);
  mask_words = new_mask_words;
}

namespace {

int64_t slot_of(int32_t entry, std::span<const int32_t> pages, int32_t page_size) {
  const size_t page = static_cast<size_t>(entry / page_size);
  E31_INVARIANT(page < pages.size());
  return int64_t{pages[page]} * page_size + entry % page_size;
}

}  // namespace

void ForwardBatch::add_request(std::span<const int32_t> tokens, std::span<const int32_t> pages, int32_t page_size,
                               int32_t first_entry, int32_t first_visible_entry, int32_t position_offset,
                               const EntryRange& writable) {
  E31_INVARIANT(tree_row_begin.size() == 1);
  for (size_t row = 0; row < tokens.size(); ++row) {
    const int32_t entry = first_entry + static_cast<int32_t>(row);
    token_ids.push_back(tokens[row]);
    positions.push_back(entry + position_offset);
    const bool is_written = entry >= writable.begin && entry < writable.end;
    slots.push_back(is_written ? slot_of(entry, pages, page_size) : -1);
  }
  finish_request(pages, first_entry, first_visible_entry);
}

void ForwardBatch::add_tree(const TreeRows& rows, std::span<const int32_t> pages, int32_t page_size,
                            int32_t first_entry, int32_t first_visible_entry, int32_t position_offset) {
  E31_INVARIANT(rows.mask_words <= mask_words);
  for (size_t row = 0; row < rows.token_ids.size(); ++row) {
    token_ids.push_back(rows.token_ids[row]);
    positions.push_back(first_entry + rows.depths[row] + position_offset);
    slots.push_back(slot_of(first_entry + rows.first_row + static_cast<int32_t>(row), pages, page_size));
    const uint64_t* words = rows.ancestor_mask + row * static_cast<size_t>(rows.mask_words);
    ancestor_mask.insert(ancestor_mask.end(), words, words + rows.mask_words);
    ancestor_mask.resize(ancestor_mask.size() + static_cast<size_t>(mask_words - rows.mask_words), 0);
  }
  tree_row_begin.push_back(tree_row_begin.back() + static_cast<int32_t>(rows.token_ids.size()));
  finish_request(pages, first_entry, first_visible_entry);
}

void ForwardBatch::finish_request(std::span<const int32_t> pages, int32_t first_entry, int32_t first_visible_entry) {
  E31_INVARIANT(static_cast<int32_t>(pages.size()) <= page_table_stride);
  row_begin.push_back(static_cast<int32_t>(token_ids.size()));
  kv_begin.push_back(first_visible_entry);
  kv_length.push_back(first_entry);
  page_table.insert(page_table.end(), pages.begin(), pages.end());
  page_table.resize(static_cast<size_t>(num_requests() * page_table_stride), 0);
}

}  // namespace eagle31rt
