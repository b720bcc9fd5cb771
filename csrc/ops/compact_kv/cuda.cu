// Moves the accepted rows of all requests in all layers with one launch.
//
// Grid (request, columns, layer), 128 threads: a thread owns one column, 16 bytes of one head, of every row of its
// request, in the keys and in the values. Sources and destinations of a request overlap, but only within a column, so
// no thread ever waits for another: it loads up to 4 rows into registers before it stores the first of them, and a row
// that was stored is no source of a later one (compact_kv.h). The 32 to 256 bytes of a head's row are one or two
// sectors a warp reads whole. Keys with kTokensFastest, or heads that are no multiple of 16 bytes, go by elements.
//
// Bytes moved: 4 * row bytes of one side for each entry of a path (keys and values, read and written). 64 requests, 3
// accepted, 32 layers of 8 heads of 128 in bfloat16: 50 MB, 25 us on an A100, 15 us on an H100, 10 us on an H200, 6 us
// on a B200; less where a path begins as a chain, since what does not move is not read.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/compact_kv/moves.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRowsInFlight = 4;

// Chunk: uint4, or one element. `chunks_per_head` of them are a head's row.
template <typename Chunk>
__global__ void __launch_bounds__(kThreads) compact_kv_kernel(const CompactKvParams params, int32_t chunks_per_head) {
  const int64_t request = blockIdx.x;
  KvCacheView cache = cache_layer(params, static_cast<int32_t>(blockIdx.z));
  cache.head_dim = chunks_per_head;
  const int32_t column = static_cast<int32_t>(blockIdx.y) * kThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t head = column / chunks_per_head, chunk = column % chunks_per_head;
  if (head >= cache.num_kv_heads) return;
  Chunk* keys = static_cast<Chunk*>(cache.key);
  Chunk* values = static_cast<Chunk*>(cache.value);
  const int32_t num_accepted = params.num_accepted[request];
  for (int32_t first = 1; first <= num_accepted; first += kRowsInFlight) {
    Chunk key[kRowsInFlight], value[kRowsInFlight];
    int64_t destinations[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      destinations[i] = -1;
      if (first + i > num_accepted) continue;
      const KvMove move = kv_move(params, request, first + i);
      if (move.source < 0) continue;
      destinations[i] = move.destination;
      const int64_t page = move.source / cache.page_size, offset = move.source % cache.page_size;
      key[i] = keys[cache.key_index(page, head, chunk, offset)];
      value[i] = values[cache.value_index(page, head, offset, chunk)];
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (destinations[i] < 0) continue;
      const int64_t page = destinations[i] / cache.page_size, offset = destinations[i] % cache.page_size;
      keys[cache.key_index(page, head, chunk, offset)] = key[i];
      values[cache.value_index(page, head, offset, chunk)] = value[i];
    }
  }
}

template <typename Chunk>
void launch_compact(const CompactKvParams& params, ExecutionContext& context) {
  const auto head_bytes = static_cast<int32_t>(params.cache.head_dim * dtype_size(params.cache.dtype));
  const int32_t chunks_per_head = head_bytes / static_cast<int32_t>(sizeof(Chunk));
  const int32_t columns = params.cache.num_kv_heads * chunks_per_head;
  launch("compact_kv", compact_kv_kernel<Chunk>,
         {.grid = dim3(static_cast<unsigned>(params.num_requests),
                       static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                       static_cast<unsigned>(num_cache_layers(params))),
          .block = dim3(kThreads)},
         context, params, chunks_per_head);
}

}  // namespace

void compact_kv(const CompactKvParams& params, ExecutionContext& context) {
  const int64_t element_size = dtype_size(params.cache.dtype);
  if (params.cache.key_layout == KeyLayout::kDimsFastest && params.cache.head_dim * element_size % 16 == 0) {
    launch_compact<uint4>(params, context);
  } else if (element_size == 4) {
    launch_compact<uint32_t>(params, context);
  } else {
    launch_compact<uint16_t>(params, context);
  }
}

}  // namespace eagle31rt::cuda
