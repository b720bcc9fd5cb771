// Owning, page-aligned memory. It comes zeroed and is not resident until touched.
//
// Weights ask for huge pages: a decode step streams each once, and 4 KiB pages cost it a TLB miss per 4 KiB. A KV cache
// must not: the first token would make 2 MiB resident in every layer's keys and values, 120 MB for 30 layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace eagle31rt {

enum class HugePages { kNo, kYes };

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error(kResource) if the memory cannot be had. num_bytes 0 gives an empty buffer.
  explicit AlignedBuffer(size_t num_bytes, HugePages huge_pages = HugePages::kNo);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void swap(AlignedBuffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapping_size_, other.mapping_size_);
  }
  void* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // what the system gave; data_ lies in it, aligned to a huge page if those were asked for
  size_t mapping_size_ = 0;
};

}  // namespace eagle31rt
