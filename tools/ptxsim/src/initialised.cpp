// One bit per byte of device memory: something wrote it since it was allocated.
#include "initialised.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "checker.h"
#include "memory.h"
#include "ptxsim.h"

namespace ptxsim {
namespace {

uint8_t* bits() {
  static uint8_t* const bitmap = reinterpret_cast<uint8_t*>(reserve_zeroed(arena_bytes() / 8 + 1));
  return bitmap;
}

void set_bits(uint64_t first, uint64_t count, bool value) {
  uint8_t* const map = bits();
  const auto set_one = [&](uint64_t bit) {
    const auto mask = static_cast<uint8_t>(1u << (bit % 8));
    map[bit / 8] = static_cast<uint8_t>(value ? map[bit / 8] | mask : map[bit / 8] & ~mask);
  };
  uint64_t bit = first;
  const uint64_t end = first + count;
  for (; bit < end && bit % 8 != 0; ++bit) set_one(bit);
  const uint64_t whole = (end - bit) / 8;
  std::memset(map + bit / 8, value ? 0xff : 0, whole);
  for (bit += whole * 8; bit < end; ++bit) set_one(bit);
}

// Clears without touching pages that are zero: a buffer of gigabytes would else cost an eighth of them.
void clear_bits(uint64_t first, uint64_t count) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t bits_per_page = page * 8;
  const uint64_t begin = (first + bits_per_page - 1) / bits_per_page * bits_per_page;
  const uint64_t end = (first + count) / bits_per_page * bits_per_page;
  if (begin >= end) return set_bits(first, count, false);
  set_bits(first, begin - first, false);
  madvise(bits() + begin / 8, (end - begin) / 8, MADV_DONTNEED);
  set_bits(end, first + count - end, false);
}

uint64_t offset_of(const void* pointer) {
  return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - arena_begin());
}

}  // namespace

// The arena is passed by address, not asked for: allocate() calls this while it holds the arena.
void note_allocation(const std::byte* begin, size_t num_bytes) { clear_bits(offset_of(begin), num_bytes); }

void mark_initialised(const void* pointer, size_t num_bytes) {
  if (is_device_pointer(pointer)) set_bits(offset_of(pointer), num_bytes, true);
}

bool is_initialised(const std::byte* pointer, size_t num_bytes) {
  const uint64_t first = offset_of(pointer);
  for (uint64_t bit = first; bit < first + num_bytes; ++bit) {
    if ((bits()[bit / 8] >> (bit % 8) & 1) == 0) return false;
  }
  return true;
}

}  // namespace ptxsim
