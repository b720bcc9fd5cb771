#include "device/aligned_buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace eagle31rt {

AlignedBuffer::AlignedBuffer(size_t num_bytes) {
  if (num_bytes == 0) return;
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  E31_CHECK(memory != MAP_FAILED, kResource, "could not allocate ", num_bytes,
            " bytes; lower max_num_seqs, max_model_len or kv_cache_memory_bytes, or free memory");
#ifdef MADV_HUGEPAGE
  // 2 MiB pages pay only where most of a page is used; small buffers would waste it.
  constexpr size_t kHugePageThreshold = size_t{4} << 20;
  if (num_bytes >= kHugePageThreshold) madvise(memory, num_bytes, MADV_HUGEPAGE);
#endif
  data_ = memory;
  size_ = num_bytes;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace eagle31rt
