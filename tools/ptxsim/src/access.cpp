#include "access.h"

#include <bit>
#include <string>

#include "counters.h"
#include "kernel.h"
#include "memory.h"

namespace ptxsim {
namespace {

const char* verb(Access access) { return access == Access::kAtomic ? "atomic" : reads(access) ? "read" : "write"; }

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

void check_alignment(Mask mask, uint32_t bytes, const uint64_t* addresses, const char* space) {
  uint64_t bits = 0;
  if (mask == kFullMask) {
    for (int lane = 0; lane < kWarpSize; ++lane) bits |= addresses[lane];
    if ((bits & (bytes - 1)) == 0) return;
  }
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if ((addresses[lane] & (bytes - 1)) == 0) continue;
    throw Fault{
        "misaligned",
        std::string(space) + " access of " + std::to_string(bytes) + " bytes at " + hexadecimal(addresses[lane]), lane};
  }
}

struct Span {
  uint64_t low, high;
};

Span span_of(Mask mask, const uint64_t* addresses) {
  Span span{~uint64_t{0} >> 1, 0};
  if (mask == kFullMask) {
    int64_t low = static_cast<int64_t>(addresses[0]), high = low;  // signed: AVX2 compares no unsigned 64-bit lanes
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const auto address = static_cast<int64_t>(addresses[lane]);
      low = address < low ? address : low;
      high = address > high ? address : high;
    }
    return {static_cast<uint64_t>(low), static_cast<uint64_t>(high)};
  }
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const uint64_t address = addresses[std::countr_zero(rest)];
    span.low = address < span.low ? address : span.low;
    span.high = address > span.high ? address : span.high;
  }
  return span;
}

const std::byte* pointer(uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

[[noreturn]] void global_out_of_bounds(Access access, uint32_t bytes, uint64_t address, int lane) {
  std::string message =
      std::string("global ") + verb(access) + " of " + std::to_string(bytes) + " bytes at " + hexadecimal(address);
  const Range range = nearest_buffer(pointer(address));
  if (range.begin != nullptr) {
    message += ", at offset " + std::to_string(pointer(address) - range.begin) + " of a buffer of " +
               std::to_string(range.end - range.begin) + " bytes";
  } else {
    message += ", which is not in device memory";
  }
  throw Fault{"out-of-bounds", message, lane};
}

// Buffers seen last: a kernel streams through few of them. One per OS thread, so that none waits for another.
struct RangeCache {
  static constexpr size_t kEntries = 8;
  Range ranges[kEntries];
  size_t next = 0;
  uint64_t epoch = 0;

  bool contains(uint64_t low, uint64_t high) {
    if (epoch != allocation_epoch()) {
      *this = {};
      epoch = allocation_epoch();
    }
    for (const Range& range : ranges) {
      if (range.contains(pointer(low), pointer(high))) return true;
    }
    const Range found = find_buffer(pointer(low));
    if (!found.contains(pointer(low), pointer(high)) || found.begin == nullptr) return false;
    ranges[next++ % kEntries] = found;
    return true;
  }
};

void check_bounds(Mask mask, Access access, uint32_t bytes, const uint64_t* addresses) {
  static thread_local RangeCache cache;
  check_alignment(mask, bytes, addresses, "global");
  const Span span = span_of(mask, addresses);
  if (cache.contains(span.low, span.high + bytes)) return;
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (!cache.contains(addresses[lane], addresses[lane] + bytes)) {
      global_out_of_bounds(access, bytes, addresses[lane], lane);
    }
  }
}

void resolve_local(Warp& warp, Mask mask, Access access, uint32_t bytes, const uint64_t* addresses) {
  check_alignment(mask, bytes, addresses, "local");
  const uint64_t frame = warp.block->launch->kernel->local_bytes;
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const uint64_t own = reinterpret_cast<uint64_t>(warp.block->local) + warp.thread(lane) * frame;
    if (addresses[lane] >= own && addresses[lane] + bytes <= own + frame) continue;
    throw Fault{"out-of-bounds",
                std::string("local ") + verb(access) + " of " + std::to_string(bytes) + " bytes at offset " +
                    std::to_string(static_cast<int64_t>(addresses[lane] - own)) + " of " + std::to_string(frame),
                lane};
  }
}

void resolve_parameters(Warp& warp, Mask mask, Access access, uint32_t bytes, const uint64_t* addresses) {
  check_alignment(mask, bytes, addresses, "parameter");
  const Launch& launch = *warp.block->launch;
  const Range range{launch.parameters, launch.parameters + launch.parameter_bytes};
  for (Mask rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (range.contains(pointer(addresses[lane]), pointer(addresses[lane] + bytes)) && access == Access::kLoad) continue;
    // Parameters of functions are in local memory.
    resolve_local(warp, Mask{1} << lane, access, bytes, addresses);
  }
}

void resolve_generic(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                     uint64_t* addresses) {
  while (mask != 0) {
    const Space space = classify(warp, addresses[std::countr_zero(mask)]);
    Mask same = 0;
    for (Mask rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (classify(warp, addresses[lane]) == space) same |= Mask{1} << lane;
    }
    if (space == Space::kShared) {
      const uint64_t base = reinterpret_cast<uint64_t>(warp.block->shared);
      uint64_t offsets[kWarpSize];
      for (int lane = 0; lane < kWarpSize; ++lane) offsets[lane] = addresses[lane] - base;
      resolve_shared(warp, instruction, same, access, bytes, offsets);
    } else if (space == Space::kLocal) {
      resolve_local(warp, same, access, bytes, addresses);
    } else if (space == Space::kParam) {
      resolve_parameters(warp, same, access, bytes, addresses);
    } else {
      resolve_global(warp, instruction, same, access, bytes, addresses);
    }
    mask &= ~same;
  }
}

}  // namespace

void gather_addresses(Warp& warp, const Instruction& instruction, uint64_t* addresses) {
  const auto offset = static_cast<uint64_t>(instruction.immediate);
  if (instruction.address_bytes == 8) {
    const uint64_t* base = warp.lanes<uint64_t>(instruction.address);
    for (int lane = 0; lane < kWarpSize; ++lane) addresses[lane] = base[lane] + offset;
  } else {
    const uint32_t* base = warp.lanes<uint32_t>(instruction.address);
    for (int lane = 0; lane < kWarpSize; ++lane) addresses[lane] = static_cast<uint32_t>(base[lane] + offset);
  }
}

Space classify(const Warp& warp, uint64_t address) {
  const Block& block = *warp.block;
  const Launch& launch = *block.launch;
  if (address - reinterpret_cast<uint64_t>(block.shared) < kSharedWindowBytes) return Space::kShared;
  if (address - reinterpret_cast<uint64_t>(block.local) < block.local_bytes) return Space::kLocal;
  if (address - reinterpret_cast<uint64_t>(launch.parameters) < launch.parameter_bytes) return Space::kParam;
  return Space::kGlobal;
}

void resolve_shared(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                    uint64_t* addresses) {
  Block& block = *warp.block;
  check_alignment(mask, bytes, addresses, "shared");
  if (span_of(mask, addresses).high + bytes > block.shared_bytes) {
    for (Mask rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (addresses[lane] + bytes <= block.shared_bytes) continue;
      throw Fault{"out-of-bounds",
                  std::string("shared ") + verb(access) + " of " + std::to_string(bytes) + " bytes at offset " +
                      std::to_string(addresses[lane]) + " of " + std::to_string(block.shared_bytes),
                  lane};
    }
  }
  if (block.launch->traffic != nullptr) block.launch->traffic->shared(mask, addresses, bytes);
  if (block.launch->checker != nullptr) {
    block.launch->checker->shared(warp, instruction, mask, access, bytes, addresses);
  }
  const uint64_t base = reinterpret_cast<uint64_t>(block.shared);
  for (int lane = 0; lane < kWarpSize; ++lane) addresses[lane] += base;
}

void resolve_global(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                    const uint64_t* addresses) {
  check_bounds(mask, access, bytes, addresses);
  Launch& launch = *warp.block->launch;
  if (launch.traffic != nullptr) launch.traffic->global(mask, addresses, bytes, reads(access), writes(access));
  if (launch.checker != nullptr) launch.checker->global(warp, instruction, mask, access, bytes, addresses);
}

void resolve(Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
             uint64_t* addresses) {
  switch (instruction.space) {
    case Space::kShared:
      for (int lane = 0; lane < kWarpSize; ++lane) addresses[lane] = static_cast<uint32_t>(addresses[lane]);
      return resolve_shared(warp, instruction, mask, access, bytes, addresses);
    case Space::kGlobal:
      return resolve_global(warp, instruction, mask, access, bytes, addresses);
    case Space::kConst:  // goes through a cache of its own: not global traffic
      return check_bounds(mask, access, bytes, addresses);
    case Space::kLocal:
      return resolve_local(warp, mask, access, bytes, addresses);
    case Space::kParam:
      return resolve_parameters(warp, mask, access, bytes, addresses);
    case Space::kGeneric:
      return resolve_generic(warp, instruction, mask, access, bytes, addresses);
  }
}

}  // namespace ptxsim
