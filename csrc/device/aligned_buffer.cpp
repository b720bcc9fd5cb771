#include "device/aligned_buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace eagle31rt {

AlignedBuffer::AlignedBuffer(size_t num_bytes, HugePages huge_pages) {
  if (num_bytes == 0) return;
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const bool huge = huge_pages == HugePages::kYes;
  const size_t mapping_size = num_bytes + (huge ? kHugePage : 0);
  void* memory =
      mmap(nullptr, mapping_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  E31_CHECK(memory != MAP_FAILED, kResource, "could not allocate ", num_bytes,
            " bytes; lower max_num_seqs, max_model_len or kv_cache_memory_bytes, or free memory");
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
  madvise(memory, mapping_size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  data_ = huge ? reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage) : memory;
  size_ = num_bytes;
  mapping_ = memory;
  mapping_size_ = mapping_size;
}

AlignedBuffer::~AlignedBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
}

}  // namespace eagle31rt
