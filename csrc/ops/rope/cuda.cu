// Rotary position embedding of query and key heads, in place.
//
// One block a row: 32 lanes along the pairs of a head, 8 warps along the heads. A warp reads and writes 128 contiguous
// bytes of each half (half-split), or 256 as 8-byte pairs (interleaved; single elements where the row is not aligned to
// 8 bytes). Every pair is independent, so nothing is summed and the configuration needs no more thought.
//
// Bytes moved: 8 per rotated element plus the angles. 64 rows of 32 + 8 heads of 128: 2.7 MB, 1.4 us on an A100, 0.8 us
// on an H100, 0.6 us on an H200, 0.4 us on a B200: below the cost of a launch, so one warp is not given more than one
// head at a time.
#include "device/cuda/launch.h"
#include "device/cuda/ptx.cuh"
#include "ops/rope/rope.h"

namespace eagle31rt::cuda {

namespace {

constexpr int kHeadsPerPass = 8;

// The CPU's arithmetic: 0 - y * sine, so that signs of zeros agree too.
E31_DEVICE float2 rotate(float x, float y, float cosine, float sine) {
  return {fmaf(x, cosine, 0.0f - y * sine), fmaf(y, cosine, x * sine)};
}

E31_DEVICE void rotate_halves(float* head, const float* cosine, const float* sine, int half) {
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kWarpSize) {
    const float2 rotated = rotate(head[i], head[half + i], cosine[i], sine[i]);
    head[i] = rotated.x;
    head[half + i] = rotated.y;
  }
}

E31_DEVICE void rotate_neighbours(float* head, const float* cosine, const float* sine, int half) {
  const bool pairs = reinterpret_cast<uintptr_t>(head) % sizeof(float2) == 0;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kWarpSize) {
    float2* pair = reinterpret_cast<float2*>(head) + i;
    const float2 value = pairs ? *pair : float2{head[2 * i], head[2 * i + 1]};
    const float2 rotated = rotate(value.x, value.y, cosine[i], sine[i]);
    if (pairs) {
      *pair = rotated;
    } else {
      head[2 * i] = rotated.x;
      head[2 * i + 1] = rotated.y;
    }
  }
}

__global__ void __launch_bounds__(kWarpSize* kHeadsPerPass) rope_kernel(const RopeParams p) {
  const int64_t row = blockIdx.x;
  const int half = p.rotary_dim / 2;
  const float* cosine = p.cosine + row * half;
  const float* sine = p.sine + row * half;
  const int num_heads = p.num_heads + p.num_kv_heads;
  for (int h = static_cast<int>(threadIdx.y); h < num_heads; h += kHeadsPerPass) {
    float* heads = (h < p.num_heads ? p.query : p.key) + row * p.row_stride;
    float* head = heads + static_cast<int64_t>(h < p.num_heads ? h : h - p.num_heads) * p.head_dim;
    if (p.interleaved) {
      rotate_neighbours(head, cosine, sine, half);
    } else {
      rotate_halves(head, cosine, sine, half);
    }
  }
}

}  // namespace

void rope(const RopeParams& params, ExecutionContext& context) {
  launch("rope", rope_kernel,
         {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kWarpSize, kHeadsPerPass)}, context,
         params);
}

}  // namespace eagle31rt::cuda
