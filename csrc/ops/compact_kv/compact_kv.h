// After a tree was verified: moves the KV entries of the accepted path from the slots of their rows to the slots of the
// request's first rows, where a chain would have put them; in one or all layers of a cache. Bits are copied, never
// computed again, so the cache is the one that plain decoding of the path would have left (batch_correctness 2.3).
//
// Request i stored row r at slots[row_begin[i] + r]. Entry j of its path is row path_rows[row_begin[i] + j], and goes
// to slots[row_begin[i] + j]. Paths ascend, so an entry never moves up and a slot that was written is not read again:
// moving in the order of the path needs no second buffer. Everything else in the cache stays as it was. Slots of
// different requests differ.
#pragma once

#include <cstdint>

#include "ops/kv_append/kv_cache_view.h"

namespace eagle31rt {

struct CompactKvParams {
  KvCacheView cache;          // the layer, if it is the only one; its shape, dtype and layout are those of every layer
  const KvCacheView* layers;  // [num_layers] where the operator runs, or null: `cache` alone
  const int32_t* row_begin;   // [num_requests + 1]
  const int64_t* slots;       // [num_rows] as kv_append had them; a move from or to a negative slot is skipped
  const int32_t* num_accepted;  // [num_requests] path entries after the root; negative: nothing moves
  const int32_t* path_rows;     // [num_rows] as verify_tree leaves them: from row_begin[i], num_accepted[i] + 1 rows of
                                // the request, ascending
  int64_t num_requests;
  int32_t num_layers;  // not used if layers is null
};

}  // namespace eagle31rt
