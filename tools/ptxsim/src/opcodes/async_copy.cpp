// cp.async: copies from global to shared memory that complete at a wait, and no sooner. Until then their destination
// holds 0xff, so that a kernel that reads too early reads NaN.
#include <cstring>

#include "../access.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

void check_sources(Warp& warp, const Instruction& instruction, const AsyncCopy& copy, uint64_t* addresses) {
  Mask whole = 0;
  for_lanes(copy.pending, [&](int lane) {
    const uint32_t bytes = copy.source_bytes[static_cast<size_t>(lane)];
    if (bytes == copy.bytes) {
      whole |= Mask{1} << lane;
    } else if (bytes > copy.bytes) {
      throw Fault{"out-of-bounds",
                  "cp.async with a source of " + std::to_string(bytes) + " bytes for " + std::to_string(copy.bytes),
                  lane};
    } else if (bytes != 0) {  // the rest is zeros and is not read
      const uint64_t first = addresses[lane];
      resolve_global(warp, instruction, Mask{1} << lane, Access::kLoad, 1, addresses);
      addresses[lane] = first + bytes - 1;
      resolve_global(warp, instruction, Mask{1} << lane, Access::kLoad, 1, addresses);
      addresses[lane] = first;
    }
  });
  if (whole != 0) resolve_global(warp, instruction, whole, Access::kLoad, copy.bytes, addresses);
}

// Operands: source address, source size or kNone, predicate of ignore-src or kNone. mode: bytes, mode2: source offset.
void copy_async(Warp& warp, const Instruction& instruction, Mask mask) {
  AsyncCopy& copy = warp.copies.emplace_back();
  copy.instruction = &instruction;
  copy.pending = mask;
  copy.bytes = instruction.mode;
  const uint64_t* source = warp.lanes<uint64_t>(instruction.operand[0]);
  const uint32_t* size = instruction.operand[1] == kNone ? nullptr : warp.lanes<uint32_t>(instruction.operand[1]);
  const Mask ignored = instruction.operand[2] == kNone ? 0 : warp.predicate(instruction.operand[2]);
  uint64_t destinations[kWarpSize], sources[kWarpSize];
  gather_addresses(warp, instruction, destinations);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto i = static_cast<size_t>(lane);
    sources[lane] = source[lane] + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(instruction.mode2)));
    copy.destination[i] = static_cast<uint32_t>(destinations[lane]);
    copy.source[i] = reinterpret_cast<const std::byte*>(sources[lane]);
    copy.source_bytes[i] = (ignored >> lane & 1) != 0 ? 0 : size == nullptr ? copy.bytes : size[lane];
    copy.group[i] = warp.committed_groups[i];
  }
  check_sources(warp, instruction, copy, sources);
  resolve(warp, instruction, mask, Access::kAsyncStore, copy.bytes, destinations);
  const std::array<uint64_t, 2> poison = {~uint64_t{0}, ~uint64_t{0}};
  for_lanes(mask,
            [&](int lane) { std::memcpy(reinterpret_cast<void*>(destinations[lane]), poison.data(), copy.bytes); });
}

void complete(Warp& warp, AsyncCopy& copy, Mask lanes) {
  std::byte* shared = warp.block->shared;
  Checker* const checker = warp.block->launch->checker;
  for_lanes(lanes, [&](int lane) {
    const auto i = static_cast<size_t>(lane);
    if (copy.bytes == 16 && copy.source_bytes[i] == 16) {  // most are: no call, no branch on the size
      std::memcpy(shared + copy.destination[i], copy.source[i], 16);
    } else {
      std::memcpy(shared + copy.destination[i], copy.source[i], copy.source_bytes[i]);
      std::memset(shared + copy.destination[i] + copy.source_bytes[i], 0, copy.bytes - copy.source_bytes[i]);
    }
    if (checker != nullptr) checker->copy_completed(warp, *copy.instruction, lane, copy.destination[i], copy.bytes);
  });
  copy.pending &= ~lanes;
}

void commit_group(Warp& warp, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) { ++warp.committed_groups[static_cast<size_t>(lane)]; });
}

// mode: groups that may stay; kNone: wait_all, which waits for copies that no group holds too.
void wait_groups(Warp& warp, const Instruction& instruction, Mask mask) {
  for (AsyncCopy& copy : warp.copies) {
    Mask due = 0;
    for_lanes(copy.pending & mask, [&](int lane) {
      const auto i = static_cast<size_t>(lane);
      const bool waits = instruction.mode == kNone || copy.group[i] + instruction.mode < warp.committed_groups[i];
      due |= static_cast<Mask>(waits) << lane;
    });
    if (due != 0) complete(warp, copy, due);
  }
  std::erase_if(warp.copies, [](const AsyncCopy& copy) { return copy.pending == 0; });
}

void decode_copy(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const std::string cache = modifiers.take_any({"ca", "cg"});
  const bool shared = modifiers.take("shared") || modifiers.take("shared::cta");
  const bool global = modifiers.take("global"), hint = modifiers.take("L2::cache_hint");
  modifiers.take_any({"L2::64B", "L2::128B", "L2::256B"});
  if (cache.empty() || !shared || !global) decoder.unknown();
  const auto bytes = static_cast<uint32_t>(decoder.literal(decoder.operand(2)));
  if (bytes != 16 && (cache == "cg" || (bytes != 4 && bytes != 8)))
    decoder.fail("cp.async of this size does not exist");
  uint32_t size = kNone, ignored = kNone;
  if (decoder.num_operands() > (hint ? 4u : 3u)) {
    if (decoder.is_predicate(decoder.operand(3)))
      ignored = decoder.source(3, kPredicate);
    else
      size = decoder.source(3, 4);
  }
  const auto source = decoder.address(decoder.operand(1)), destination = decoder.address(decoder.operand(0));
  if (source.bytes != 8) decoder.fail("a global address has 64 bits");
  Instruction& instruction = decoder.emit(copy_async, {source.reg, size, ignored});
  instruction.space = Space::kShared;
  instruction.address = destination.reg;
  instruction.address_bytes = static_cast<uint8_t>(destination.bytes);
  instruction.immediate = destination.offset;
  instruction.mode = bytes;
  instruction.mode2 = static_cast<uint32_t>(source.offset);
}

void decode_cp(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  if (!modifiers.take("async")) decoder.unknown();
  if (modifiers.take("commit_group")) {
    decoder.emit(commit_group);
  } else if (modifiers.take("wait_all")) {
    decoder.emit(wait_groups).mode = kNone;
  } else if (modifiers.take("wait_group")) {
    const auto groups = static_cast<uint32_t>(decoder.literal(decoder.operand(0)));
    decoder.emit(wait_groups).mode = groups;
  } else {
    decode_copy(decoder);
  }
}

}  // namespace

void add_async_copy_opcodes(OpcodeTable& table) { table["cp"] = decode_cp; }

}  // namespace ptxsim
