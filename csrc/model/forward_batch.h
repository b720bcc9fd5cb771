// The rows of one forward pass: packed and ragged, so a batch has no rectangle and no padding. Prefill chunks, decode
// rows, verify rows and draft rows are all described by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eagle31rt {

// What a pass reads, in the memory of the device that runs it: a ForwardBatch, or rows that were made on the device.
struct BatchView {
  const int32_t* token_ids;
  const int32_t* positions;
  const int64_t* slots;  // negative: the row writes no KV
  const int32_t* row_begin;
  const int32_t* kv_begin;
  const int32_t* kv_length;
  const int32_t* page_table;
  int32_t page_table_stride;
  int64_t num_rows;
  int64_t num_requests;
  // The last requests may be trees: their rows see the entries before kv_length, and of those behind it the ones that
  // their masks name (ops/paged_attention). Rows and bits count from the first row of a tree.
  const uint64_t* ancestor_mask = nullptr;  // [rows of trees, mask_words]
  const int32_t* tree_row_begin = nullptr;  // [num_trees + 1] from 0
  int32_t mask_words = 0;
  int64_t num_trees = 0;

  // Its two parts, for operators that take one kind. Rows of trees begin at num_rows - trees().num_rows.
  BatchView without_trees() const;
  BatchView trees() const;
};

// KV entries that a request may write.
struct EntryRange {
  int32_t begin = 0;
  int32_t end = INT32_MAX;
};

// Rows of one tree; all of it, or those that a level adds.
struct TreeRows {
  std::span<const int32_t> token_ids;  // [num_rows]
  std::span<const int32_t> depths;     // [num_rows] added to the position of the tree's first entry
  const uint64_t* ancestor_mask;       // [num_rows, mask_words] bit b: entry b of the tree, the row's own one included
  int32_t mask_words;
  int32_t first_row = 0;  // row r writes entry first_row + r of the tree
};

struct ForwardBatch {
  std::vector<int32_t> token_ids;     // [num_rows]
  std::vector<int32_t> positions;     // [num_rows] rotary positions
  std::vector<int64_t> slots;         // [num_rows] KV slot that the row writes: page * page_size + offset; -1: none
  std::vector<int32_t> row_begin{0};  // [num_requests + 1]
  std::vector<int32_t> kv_begin;      // [num_requests] first visible KV index
  std::vector<int32_t> kv_length;     // [num_requests] KV entries before the request's first row
  std::vector<int32_t> page_table;    // [num_requests, page_table_stride]; entries past a request's pages are 0
  int32_t page_table_stride = 0;
  std::vector<uint64_t> ancestor_mask;     // [rows of trees, mask_words]
  std::vector<int32_t> tree_row_begin{0};  // [num_trees + 1]
  int32_t mask_words = 0;

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_requests() const { return static_cast<int64_t>(kv_length.size()); }

  BatchView view() const;
  // new_mask_words: at least those of every tree to come.
  void clear(int32_t new_page_table_stride, int32_t new_mask_words = 0);

  // Appends a request whose first row writes KV entry `first_entry`. `position_offset` is added to the KV index to give
  // the rotary position (0 for a target; -1 for a draft, whose entry p + 1 holds position p). Rows of entries outside
  // of `writable` write nothing.
  void add_request(std::span<const int32_t> tokens, std::span<const int32_t> pages, int32_t page_size,
                   int32_t first_entry, int32_t first_visible_entry, int32_t position_offset,
                   const EntryRange& writable = {});
  // Appends a tree whose entry 0 is KV entry `first_entry`. No request without a tree may follow.
  void add_tree(const TreeRows& rows, std::span<const int32_t> pages, int32_t page_size, int32_t first_entry,
                int32_t first_visible_entry, int32_t position_offset);

 private:
  void finish_request(std::span<const int32_t> pages, int32_t first_entry, int32_t first_visible_entry);
};

}  // namespace eagle31rt
