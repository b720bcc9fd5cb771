#include "memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "checker.h"
#include "ptxsim.h"

namespace ptxsim {
namespace {

constexpr size_t kGranule = 256;

class Arena {
 public:
  static Arena& instance() {
    // First used by the registration of fat binaries, before main(); last used by exit handlers. So never destroyed.
    static Arena& arena = *new Arena;
    return arena;
  }

  void* allocate(size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    const size_t room = (std::max<size_t>(num_bytes, 1) + kGranule - 1) / kGranule * kGranule + kRedZoneBytes;
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < room) continue;
      const size_t offset = hole->first, left = hole->second - room;
      holes_.erase(hole);
      if (left != 0) holes_[offset + room] = left;
      buffers_[offset] = num_bytes;
      in_use_ += num_bytes;
      ++epoch_;
      std::memset(base_ + offset, 0xff, num_bytes);
      note_allocation(base_ + offset, num_bytes);
      return base_ + offset;
    }
    return nullptr;
  }

  bool deallocate(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto* address = static_cast<const std::byte*>(pointer);
    if (!inside(address)) return false;
    const auto buffer = buffers_.find(static_cast<size_t>(address - base_));
    if (buffer == buffers_.end()) return false;
    const size_t offset = buffer->first;
    size_t room = (std::max<size_t>(buffer->second, 1) + kGranule - 1) / kGranule * kGranule + kRedZoneBytes;
    in_use_ -= buffer->second;
    buffers_.erase(buffer);
    ++epoch_;
    auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && next->first == offset + room) {
      room += next->second;
      next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += room;
        return true;
      }
    }
    holes_[offset] = room;
    return true;
  }

  Range find(const std::byte* address) {
    const std::lock_guard lock(mutex_);
    if (!inside(address)) return {};
    auto after = buffers_.upper_bound(static_cast<size_t>(address - base_));
    if (after == buffers_.begin()) return {};
    --after;
    const Range range{base_ + after->first, base_ + after->first + after->second};
    return address < range.end ? range : Range{};
  }

  Range nearest(const std::byte* address) {
    const std::lock_guard lock(mutex_);
    if (!inside(address) || buffers_.empty()) return {};
    const auto offset = static_cast<size_t>(address - base_);
    auto after = buffers_.upper_bound(offset);
    const bool take_after = after == buffers_.begin() ||
                            (after != buffers_.end() &&
                             std::prev(after)->first + std::prev(after)->second + (after->first - offset) < offset);
    if (!take_after) --after;
    return {base_ + after->first, base_ + after->first + after->second};
  }

  const std::byte* base() const { return base_; }
  size_t capacity() const { return capacity_; }
  size_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }
  uint64_t epoch() const { return epoch_; }

 private:
  Arena() {
    const char* wish = std::getenv("PTXSIM_MEMORY_BYTES");
    if (wish != nullptr) capacity_ = std::strtoull(wish, nullptr, 0);
    capacity_ = std::max<size_t>((capacity_ + 4095) / 4096 * 4096, 1 << 20);
    base_ = reserve_zeroed(capacity_);
    holes_[kRedZoneBytes] = capacity_ - kRedZoneBytes;
  }

  bool inside(const std::byte* address) const { return address >= base_ && address < base_ + capacity_; }

  std::mutex mutex_;
  std::byte* base_ = nullptr;
  size_t capacity_ = size_t{8} << 30;
  size_t in_use_ = 0;
  std::map<size_t, size_t> buffers_;  // offset -> bytes asked for
  std::map<size_t, size_t> holes_;    // offset -> bytes
  std::atomic<uint64_t> epoch_ = 1;
};

}  // namespace

std::byte* reserve_zeroed(size_t num_bytes) {
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

void* allocate(size_t num_bytes) { return Arena::instance().allocate(num_bytes); }
bool deallocate(void* pointer) { return Arena::instance().deallocate(pointer); }
size_t allocated_bytes() { return Arena::instance().in_use(); }
Range find_buffer(const std::byte* pointer) { return Arena::instance().find(pointer); }
Range nearest_buffer(const std::byte* pointer) { return Arena::instance().nearest(pointer); }
uint64_t allocation_epoch() { return Arena::instance().epoch(); }
const std::byte* arena_begin() { return Arena::instance().base(); }
size_t arena_bytes() { return Arena::instance().capacity(); }

bool is_device_pointer(const void* pointer) {
  const auto* address = static_cast<const std::byte*>(pointer);
  return address >= arena_begin() && address < arena_begin() + arena_bytes();
}

}  // namespace ptxsim
