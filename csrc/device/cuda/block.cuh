// Reductions and scans over the threads of one block. Every step has a fixed order (a butterfly within the warp, warps
// ascending), so float sums depend on the block's width only. The width is a multiple of 32.
//
// The functions are called by all threads of the block; `warp_values` is shared memory for kMaxWarps values that no
// thread may touch until the next __syncthreads().
#pragma once

#include <cstdint>

#include "device/cuda/ptx.cuh"

namespace eagle31rt::cuda {

constexpr int kMaxWarps = 32;  // 1024 threads

E31_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }
E31_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
E31_DEVICE int num_warps() { return static_cast<int>(blockDim.x) / kWarpSize; }

// The same in all lanes.
template <typename Value, typename Combine>
E31_DEVICE Value warp_reduce(Value value, Combine combine) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// The same in all threads; `identity` fills up the second butterfly. Leaves the results of the warps in warp_values.
template <typename Value, typename Combine>
E31_DEVICE Value block_reduce(Value value, Value identity, Value* warp_values, Combine combine) {
  value = warp_reduce(value, combine);
  __syncthreads();  // warp_values may still be read by an earlier call
  if (lane_index() == 0) warp_values[warp_index()] = value;
  __syncthreads();
  return warp_reduce(lane_index() < num_warps() ? warp_values[lane_index()] : identity, combine);
}

template <typename Value>
E31_DEVICE Value block_sum(Value value, Value* warp_values) {
  return block_reduce(value, Value{0}, warp_values, [](Value a, Value b) { return a + b; });
}

// For unsigned values.
template <typename Value>
E31_DEVICE Value block_max(Value value, Value* warp_values) {
  return block_reduce(value, Value{0}, warp_values, [](Value a, Value b) { return a > b ? a : b; });
}

// Sum over lanes 0 .. lane_index().
template <typename Value>
E31_DEVICE Value warp_inclusive_sum(Value value) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const Value below = __shfl_up_sync(kFullWarp, value, distance);
    if (lane_index() >= distance) value += below;
  }
  return value;
}

template <typename Value>
struct BlockScan {
  Value before;  // sum over threads 0 .. threadIdx.x - 1
  Value total;   // of the block
};

template <typename Value>
E31_DEVICE BlockScan<Value> block_exclusive_sum(Value value, Value* warp_values) {
  const Value inclusive = warp_inclusive_sum(value);
  __syncthreads();
  if (lane_index() == kWarpSize - 1) warp_values[warp_index()] = inclusive;
  __syncthreads();
  const Value warps = warp_inclusive_sum(lane_index() < num_warps() ? warp_values[lane_index()] : Value{0});
  const Value warps_before = __shfl_sync(kFullWarp, warps, warp_index() == 0 ? 0 : warp_index() - 1);
  return {(warp_index() == 0 ? Value{0} : warps_before) + inclusive - value,
          __shfl_sync(kFullWarp, warps, num_warps() - 1)};
}

}  // namespace eagle31rt::cuda
