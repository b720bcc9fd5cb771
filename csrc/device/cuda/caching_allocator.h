// Device memory that is kept when it is freed and handed out again: cudaMalloc and cudaFree wait for the whole device.
//
// Sizes are rounded up to 512 bytes below 1 MiB and to an eighth of their power of two above (at most 12.5 % is lost),
// so that activations of slightly different batches share blocks; from 64 MiB on to 2 MiB only, since what is that
// large (weights, KV cache, logits) is allocated once. If the device is full, everything that lies idle is given back
// and the request is tried once more.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>

namespace eagle31rt::cuda {

class CachingAllocator {
 public:
  CachingAllocator() = default;
  ~CachingAllocator() { release_idle(); }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Throws Error(kResource) with what is free and what to lower.
  void* allocate(size_t num_bytes);
  void deallocate(void* memory) noexcept;
  void release_idle() noexcept;

  static size_t rounded_size(size_t num_bytes);

 private:
  std::multimap<size_t, void*> idle_;
  std::unordered_map<void*, size_t> sizes_;  // of every block that cudaMalloc gave
};

}  // namespace eagle31rt::cuda
