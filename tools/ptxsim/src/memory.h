// Device memory: see allocate() in ptxsim.h. The arena is one range of host addresses, so that what is kept per sector
// or per byte (counters, checker) is an array indexed by the offset in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ptxsim {

constexpr size_t kRedZoneBytes = 256;

struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool contains(const std::byte* first, const std::byte* last) const { return first >= begin && last <= end; }
};

// The buffer that holds `pointer`; an empty range if none does.
Range find_buffer(const std::byte* pointer);
// The one that begins or ends nearest to it, for reports.
Range nearest_buffer(const std::byte* pointer);

// Changes whenever a buffer is allocated or freed: a remembered Range is good as long as this is the same.
uint64_t allocation_epoch();

const std::byte* arena_begin();
size_t arena_bytes();

// Reserves zeroed host memory that takes no room until it is touched; lives as long as the process. Throws bad_alloc.
std::byte* reserve_zeroed(size_t num_bytes);

}  // namespace ptxsim
