// A row of logits on the device, its mask applied on the way, and its largest element.
//
// A mask comes as a list of ids in any order. It becomes a bitmap in scratch memory (one bit an id: 3 % of the bytes of
// a pass over the logits), because a list can not be looked up and a masked copy of the logits would double the
// traffic.
#pragma once

#include "base/host_device.h"
#include "device/cuda/block.cuh"
#include "ops/sample/law.h"
#include "ops/sample/sample.h"

namespace eagle31rt::cuda {

constexpr float kInfinity = __builtin_inff();

struct RowLogits {
  const float* values;     // [vocab_size]
  const uint32_t* masked;  // bit id % 32 of word id / 32; null: nothing is masked

  E31_DEVICE float operator[](int32_t id) const {
    const bool is_masked = masked != nullptr && (masked[id / 32] >> (id % 32) & 1u) != 0;
    return is_masked ? -kInfinity : values[id];
  }
};

E31_HOST_DEVICE inline int64_t num_mask_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// `words` [num_mask_words(vocab_size)] is scratch of this row: written here if `build`, else as an earlier kernel left
// it.
E31_DEVICE RowLogits row_logits(const SampleParams& params, int64_t row, uint32_t* words, bool build) {
  const RowLogits plain = {params.logits + row * params.logits_stride, nullptr};
  if (params.masked_begin == nullptr) return plain;
  const int32_t begin = params.masked_begin[row], end = params.masked_begin[row + 1];
  if (begin == end) return plain;
  if (build) {
    const int32_t num_words = static_cast<int32_t>(num_mask_words(params.vocab_size));
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_words; i += blockDim.x) words[i] = 0;
    __syncthreads();
    for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += blockDim.x) {
      const int32_t id = params.masked_ids[i];
      if (id >= 0 && id < params.vocab_size) atomicOr(&words[id / 32], 1u << (id % 32));
    }
    __syncthreads();
  }
  return {plain.values, words};
}

// Position of an id in the order (logit descending, id ascending): the larger, the earlier. Unique within a row.
constexpr int kIdBits = 20;  // law::kMaxVocabSize
E31_DEVICE uint64_t order_of(float logit, int32_t id) {
  return uint64_t{law::ordered_key(logit)} << kIdBits | ((1u << kIdBits) - 1u - static_cast<uint32_t>(id));
}
E31_DEVICE int32_t id_of(uint64_t order) {
  return static_cast<int32_t>((1u << kIdBits) - 1u - (static_cast<uint32_t>(order) & ((1u << kIdBits) - 1u)));
}

struct Argmax {
  int32_t id;  // -1: no logit above -inf
  float logit;

  // Ids must come in ascending order; NaN is never greater.
  E31_DEVICE void take(float x, int32_t candidate) {
    if (!(x > logit)) return;
    logit = x;
    id = candidate;
  }
};

// Ties to the lowest id. One pass: 16 bytes a load between the 16-byte boundaries of the row.
E31_DEVICE Argmax find_argmax(const RowLogits& row, int32_t vocab_size, uint64_t* warp_values) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), num_threads = static_cast<int32_t>(blockDim.x);
  Argmax best = {-1, -kInfinity};
  if (row.masked != nullptr) {
    for (int32_t id = thread; id < vocab_size; id += num_threads) best.take(row[id], id);
  } else {
    const int32_t misplaced = static_cast<int32_t>(reinterpret_cast<uintptr_t>(row.values) / sizeof(float) % 4);
    const int32_t head = min((4 - misplaced) % 4, vocab_size);
    if (thread < head) best.take(row.values[thread], thread);
    const float4* groups = reinterpret_cast<const float4*>(row.values + head);
    const int32_t num_groups = (vocab_size - head) / 4;
#pragma unroll 4
    for (int32_t group = thread; group < num_groups; group += num_threads) {
      const float4 x = groups[group];
      const int32_t id = head + 4 * group;
      best.take(x.x, id);
      best.take(x.y, id + 1);
      best.take(x.z, id + 2);
      best.take(x.w, id + 3);
    }
    const int32_t tail = head + 4 * num_groups + thread;
    if (tail < vocab_size) best.take(row.values[tail], tail);
  }
  const uint64_t order = block_max(best.id < 0 ? uint64_t{0} : order_of(best.logit, best.id), warp_values);
  if (order == 0) return {-1, -kInfinity};
  const int32_t id = id_of(order);
  return {id, row.values[id]};
}

}  // namespace eagle31rt::cuda
