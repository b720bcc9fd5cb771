// Owning, page-aligned memory. Large buffers ask for huge pages: a decode step streams every weight once, and 4 KiB
// pages cost it a TLB miss per 4 KiB. Memory comes zeroed and is not resident until touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace eagle31rt {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error(kResource) if the memory cannot be had. num_bytes 0 gives an empty buffer.
  explicit AlignedBuffer(size_t num_bytes);
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
  }
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace eagle31rt
