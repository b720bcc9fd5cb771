// This step's keys and values into the paged cache, rounded to its type.
//
// One block a row of the keys or the values (grid.y), 256 threads along it, four neighbouring elements a thread where
// head_dim, strides and pointers allow: a warp reads 512 contiguous bytes and writes 256 (16-bit) of them, whole
// sectors both. Bytes: 6 an element with a 16-bit cache. 64 rows of 8 heads of 128: 0.8 MB, 0.4 us on an A100, 0.2 us
// on an H100 and H200, 0.1 us on a B200: below the cost of a launch.
#include "base/check.h"
#include "device/cuda/launch.h"
#include "ops/kv_append/cuda_store.cuh"
#include "ops/kv_append/kv_append.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kThreads = 256;

template <typename Element, int kWidth>
__global__ void __launch_bounds__(kThreads) kv_append_kernel(const KvAppendParams params) {
  const KvCacheView& cache = params.cache;
  const int64_t row = blockIdx.x, slot = params.slots[row];
  if (slot < 0) return;
  const bool is_key = blockIdx.y == 0;
  const float* source = (is_key ? params.key : params.value) + row * params.row_stride;
  Element* const destination = static_cast<Element*>(is_key ? cache.key : cache.value);
  const int64_t page = slot / cache.page_size, offset = slot % cache.page_size;
  const int width = cache.num_kv_heads * cache.head_dim;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < width; i += kThreads * kWidth) {
    const int64_t place = cache.value_index(page, i / cache.head_dim, offset, i % cache.head_dim);
    store_rounded<kWidth>(source + i, destination + place);
  }
}

bool takes_four(const KvAppendParams& params) {
  const int64_t bytes = 4 * dtype_size(params.cache.dtype);
  return params.cache.head_dim % 4 == 0 && params.row_stride % 4 == 0 && is_aligned(params.key, sizeof(float4)) &&
         is_aligned(params.value, sizeof(float4)) && is_aligned(params.cache.key, bytes) &&
         is_aligned(params.cache.value, bytes);
}

}  // namespace

void kv_append(const KvAppendParams& params, ExecutionContext& context) {
  E31_INVARIANT(params.cache.key_layout == KeyLayout::kDimsFastest);
  dispatch_stored(params.cache.dtype, [&]<typename Element>() {
    const auto kernel = takes_four(params) ? kv_append_kernel<Element, 4> : kv_append_kernel<Element, 1>;
    launch("kv_append", kernel, {.grid = dim3(static_cast<unsigned>(params.num_rows), 2), .block = dim3(kThreads)},
           context, params);
  });
}

}  // namespace eagle31rt::cuda
