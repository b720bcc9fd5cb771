// The buffers that a program allocated, and what a pointer of it points to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace cudart {

enum class MemoryKind {
  kDevice,
  kPinned,      // cudaMallocHost: kernels may read and write it
  kManaged,     // cudaMallocManaged and __managed__ variables
  kRegistered,  // cudaHostRegister: copies treat it as pinned, kernels cannot reach it here
  kVariable,    // __device__ and __constant__ variables
};

struct Allocation {
  uintptr_t start = 0;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  bool release_queued = false;  // cudaFreeAsync was called and has not had its turn

  bool on_device() const { return kind != MemoryKind::kPinned && kind != MemoryKind::kRegistered; }
};

class MemoryTable {
 public:
  // Null if the memory is used up. Pinned and managed memory counts as initialised: the host's writes cannot be seen.
  void* allocate(size_t bytes, MemoryKind kind);
  void add(void* start, size_t bytes, MemoryKind kind);  // memory that somebody else owns
  bool release(void* start);                             // false if it is not the start of a live buffer
  void release_all();

  Allocation* find(const void* pointer);        // the live buffer that holds this byte, or null
  Allocation* find_start(const void* pointer);  // ... that starts here
  size_t device_bytes() const { return device_bytes_; }

  // Why these bytes must not be copied to or from, empty if they may: "bytes 0..399 of a buffer of 256 bytes".
  // Memory of the host that no call announced is taken on trust.
  std::string why_out_of_bounds(const void* pointer, size_t bytes);

 private:
  std::map<uintptr_t, Allocation> allocations_;
  size_t device_bytes_ = 0;
};

}  // namespace cudart
