// Items (attend_item.h) run on the pool. A single short step over a long context, where items would be fewer than
// threads, runs over (item, split) instead and merges the splits of an item afterwards, in the same order.
#include "device/execution_context.h"
#include "ops/linear/scratch.h"
#include "ops/paged_attention/attend_item.h"
#include "ops/paged_attention/paged_attention.h"

namespace eagle31rt::E31_ISA {

namespace {

// The request that owns a packed row.
int64_t request_of_row(const PagedAttentionParams& p, int64_t row) {
  int64_t low = 0, high = p.num_requests - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (p.row_begin[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The query heads of one KV head, in blocks that an item can hold.
struct Columns {
  int group;  // query heads per KV head
  int heads_per_item;
  int blocks;  // per KV head
  int count;

  explicit Columns(const PagedAttentionParams& p)
      : group(p.num_heads / p.cache.num_kv_heads),
        heads_per_item(group < kMaxQueries ? group : kMaxQueries),
        blocks((group + heads_per_item - 1) / heads_per_item),
        count(blocks * p.cache.num_kv_heads) {}

  Item item(int64_t column, int64_t request, int64_t row_begin, int64_t row_end) const {
    const int kv_head = static_cast<int>(column) / blocks;
    const int head = kv_head * group + static_cast<int>(column) % blocks * heads_per_item;
    const int group_end = (kv_head + 1) * group;
    return {request, row_begin, row_end, head, head + heads_per_item < group_end ? head + heads_per_item : group_end,
            kv_head};
  }
};

// Rows of a batch, cut into items.
void attend_rows(const PagedAttentionParams& p, const Columns& columns, ThreadPool& pool) {
  // Rows per item: as many as fit, but at least four items a thread where there are that many.
  const int64_t fair = p.num_rows * columns.count / (4 * pool.num_threads());
  const int64_t most = kMaxQueries / columns.heads_per_item;
  const int64_t rows_per_item = fair < 1 ? 1 : fair < most ? fair : most;
  const int64_t row_blocks = (p.num_rows + rows_per_item - 1) / rows_per_item;
  auto task = [&](int64_t index, int) {
    int64_t row = (row_blocks - 1 - index / columns.count) * rows_per_item;  // last first: in a prefill the longest
    const int64_t row_end = row + rows_per_item < p.num_rows ? row + rows_per_item : p.num_rows;
    for (int64_t request = request_of_row(p, row); row < row_end; ++request) {
      const int64_t end = p.row_begin[request + 1] < row_end ? p.row_begin[request + 1] : row_end;
      if (end > row) attend_item(p, columns.item(index % columns.count, request, row, end));
      row = end > row ? end : row;
    }
  };
  pool.parallel_for(row_blocks * columns.count, task);
}

// The splits of one request that all its rows see whole: [begin, end), in splits.
struct SharedSplits {
  int64_t begin, end;

  explicit SharedSplits(const PagedAttentionParams& p)
      : begin(p.kv_begin[0] / kAttentionSplit), end(p.kv_length[0] / kAttentionSplit) {}
};

// (m, l, o) of one split for the queries of one item, or the item's (M, L, O), as saved between threads.
void save(float* saved, const float* max, const float* sum, const float* output, int num_queries, int padded_dim) {
  for (int q = 0; q < num_queries; ++q, saved += padded_dim + 16) {
    saved[0] = max[q];
    saved[1] = sum[q];
    for (int d = 0; d < padded_dim; d += 16) store(saved + 16 + d, load(output + q * Workspace::kQueryStride + d));
  }
}
void restore(const float* saved, float* max, float* sum, float* output, int num_queries, int padded_dim) {
  for (int q = 0; q < num_queries; ++q, saved += padded_dim + 16) {
    max[q] = saved[0];
    sum[q] = saved[1];
    for (int d = 0; d < padded_dim; d += 16) store(output + q * Workspace::kQueryStride + d, load(saved + 16 + d));
  }
}

constexpr int64_t kSavedFloats = 1 << 18;  // 1 MiB, so that it stays in cache

// All rows of the only request, split by split, in waves of as many splits as kSavedFloats holds.
void attend_long_context(const PagedAttentionParams& p, const Columns& columns, ThreadPool& pool) {
  const SharedSplits splits(p);
  const int padded_dim = padded_head_dim(p);
  const int64_t item_floats = p.num_rows * columns.heads_per_item * (padded_dim + 16);
  const int64_t split_floats = item_floats * columns.count;
  const int64_t fitting = kSavedFloats / split_floats;
  const int64_t wave = fitting < 1 ? 1 : fitting;
  float* const states = linear_scratch((wave + 1) * split_floats);
  float* const partials = states + split_floats;
  for (int64_t begin = splits.begin; begin < splits.end; begin += wave) {
    const int64_t count = splits.end - begin < wave ? splits.end - begin : wave;
    auto compute = [&](int64_t index, int) {
      const Item item = columns.item(index % columns.count, 0, 0, p.num_rows);
      const KvHead kv = kv_head_of(p, item);
      const int64_t start = (begin + index / columns.count) * kAttentionSplit;
      Workspace& w = workspace;
      load_queries(p, item, kv, w);
      attend_shared_split(p, item, kv, start, first_in_split(p, 0, start), w);
      save(partials + index * item_floats, w.split_max, w.split_sum, w.split_output, item.num_queries(), padded_dim);
    };
    pool.parallel_for(count * columns.count, compute);
    auto merge = [&](int64_t column, int) {
      const Item item = columns.item(column, 0, 0, p.num_rows);
      const KvHead kv = kv_head_of(p, item);
      const int num_queries = item.num_queries();
      Workspace& w = workspace;
      float* const state = states + column * item_floats;
      clear_state(p, item, kv, w);
      if (begin > splits.begin) restore(state, w.max, w.sum, w.output, num_queries, padded_dim);
      for (int64_t s = 0; s < count; ++s) {
        const float* partial = partials + (s * columns.count + column) * item_floats;
        restore(partial, w.split_max, w.split_sum, w.split_output, num_queries, padded_dim);
        merge_split(w, 0, num_queries, padded_dim);
      }
      if (begin + count < splits.end) return save(state, w.max, w.sum, w.output, num_queries, padded_dim);
      load_queries(p, item, kv, w);
      attend_splits(p, item, kv, splits.end * kAttentionSplit, w);
      store_outputs(p, item, kv, w);
    };
    pool.parallel_for(columns.count, merge);
  }
}

// Splits that make it worth a second fork and saving (m, l, o).
constexpr int64_t kManySplits = 4;

bool is_long_context(const PagedAttentionParams& p, const Columns& columns, const ThreadPool& pool) {
  if (p.sliding_window > 0) return false;  // rows differ in where they begin, and a window has few splits
  if (p.num_requests != 1 || pool.num_threads() == 1 || columns.count >= 4 * pool.num_threads()) return false;
  const SharedSplits splits(p);
  return p.num_rows * columns.heads_per_item <= kMaxQueries && splits.end - splits.begin >= kManySplits;
}

}  // namespace

void paged_attention(const PagedAttentionParams& params, ExecutionContext& context) {
  PagedAttentionParams p = params;
  p.num_rows = p.row_begin[p.num_requests];  // rows behind are padding
  const Columns columns(p);
  if (is_long_context(p, columns, context.pool)) {
    attend_long_context(p, columns, context.pool);
  } else {
    attend_rows(p, columns, context.pool);
  }
}

}  // namespace eagle31rt::E31_ISA
