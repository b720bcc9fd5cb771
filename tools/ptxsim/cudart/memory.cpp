#include "memory.h"

#include "ptxsim.h"

namespace cudart {

void* MemoryTable::allocate(size_t bytes, MemoryKind kind) {
  void* start = ptxsim::allocate(bytes);
  if (!start) return nullptr;
  add(start, bytes, kind);
  if (kind != MemoryKind::kDevice) ptxsim::mark_initialised(start, bytes);
  if (kind != MemoryKind::kPinned) device_bytes_ += bytes;
  return start;
}

void MemoryTable::add(void* start, size_t bytes, MemoryKind kind) {
  const auto address = reinterpret_cast<uintptr_t>(start);
  allocations_.insert_or_assign(address, Allocation{address, bytes, kind, false});
}

bool MemoryTable::release(void* start) {
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(start));
  if (found == allocations_.end()) return false;
  const Allocation allocation = found->second;
  allocations_.erase(found);
  if (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged) {
    device_bytes_ -= allocation.bytes;
  }
  if (allocation.kind == MemoryKind::kRegistered || allocation.kind == MemoryKind::kVariable) return true;
  return ptxsim::deallocate(start);
}

void MemoryTable::release_all() {
  while (!allocations_.empty()) release(reinterpret_cast<void*>(allocations_.begin()->first));
}

Allocation* MemoryTable::find(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  Allocation& allocation = std::prev(next)->second;
  return address < allocation.start + allocation.bytes ? &allocation : nullptr;
}

Allocation* MemoryTable::find_start(const void* pointer) {
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
  return found == allocations_.end() ? nullptr : &found->second;
}

std::string MemoryTable::why_out_of_bounds(const void* pointer, size_t bytes) {
  const Allocation* allocation = find(pointer);
  if (!allocation) {
    return ptxsim::is_device_pointer(pointer) ? "an address of device memory that belongs to no live buffer" : "";
  }
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - allocation->start;
  if (bytes <= allocation->bytes - offset) return "";
  return "bytes " + std::to_string(offset) + ".." + std::to_string(offset + bytes - 1) + " of a buffer of " +
         std::to_string(allocation->bytes) + " bytes";
}

}  // namespace cudart
