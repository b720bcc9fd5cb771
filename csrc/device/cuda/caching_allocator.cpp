#include "device/cuda/caching_allocator.h"

#include <cuda_runtime_api.h>

#include <bit>

#include "base/check.h"
#include "device/cuda/check.h"

namespace eagle31rt::cuda {

namespace {

constexpr size_t kSmallGranularity = 512;
constexpr size_t kLarge = size_t{1} << 20;
constexpr size_t kHuge = size_t{64} << 20;
constexpr size_t kHugeGranularity = size_t{2} << 20;

}  // namespace

size_t CachingAllocator::rounded_size(size_t num_bytes) {
  size_t granularity = num_bytes < kLarge ? kSmallGranularity : std::bit_floor(num_bytes) / 8;
  if (num_bytes >= kHuge) granularity = kHugeGranularity;
  return (num_bytes + granularity - 1) / granularity * granularity;
}

void* CachingAllocator::allocate(size_t num_bytes) {
  const size_t size = rounded_size(num_bytes == 0 ? 1 : num_bytes);
  if (const auto found = idle_.find(size); found != idle_.end()) {
    void* memory = found->second;
    idle_.erase(found);
    return memory;
  }
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // out of memory is not sticky; clear it
    release_idle();
    status = cudaMalloc(&memory, size);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    fail(ErrorCode::kResource, "the GPU has no ", num_bytes, " bytes left (", free_bytes, " of ", total_bytes,
         " free); lower max_num_seqs, max_model_len, max_num_batched_tokens or kv_cache_memory_bytes, or free GPU "
         "memory");
  }
  check(status, "allocating device memory");
  sizes_[memory] = size;
  return memory;
}

void CachingAllocator::deallocate(void* memory) noexcept {
  if (memory != nullptr) idle_.emplace(sizes_.at(memory), memory);
}

void CachingAllocator::release_idle() noexcept {
  for (const auto& [size, memory] : idle_) {
    cudaFree(memory);
    sizes_.erase(memory);
  }
  idle_.clear();
}

}  // namespace eagle31rt::cuda
