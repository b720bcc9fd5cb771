#include "checker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "initialised.h"
#include "kernel.h"
#include "lanes.h"
#include "memory.h"
#include "scheduler.h"

namespace ptxsim {
namespace {

const char* verb(Access access) {
  switch (access) {
    case Access::kStore:
    case Access::kStrongStore:
      return "write";
    case Access::kAtomic:
      return "atomic";
    case Access::kAsyncStore:
      return "cp.async";
    default:
      return "read";
  }
}

}  // namespace

void Checker::begin_launch(const Options& options) {
  check_races_ = options.race;
  check_initialised_ = options.uninitialised;
  shared_shadow_.clear();
  global_shadow_.clear();
  released_.clear();
  clock_base_ = 0;
  clock_.fill(0);
}

void Checker::begin_block(const Block& block) {
  block_ = &block;
  block_number_ = static_cast<uint32_t>(block.linear_index);
  clock_base_ = *std::max_element(clock_.begin(), clock_.end()) + 1;
  clock_.fill(clock_base_);
  for (auto& row : known_) row.fill(clock_base_ - 1);
  for (auto& row : lane_synced_) row.fill(clock_base_);
  shared_written_.assign(block.shared_bytes, 0);
  fenced_ = acquired_ = false;
}

void Checker::warp_synchronised(const Warp& warp, Mask mask) {
  ++clock_[warp.index];
  for_lanes(mask, [&](int lane) { lane_synced_[warp.index][static_cast<size_t>(lane)] = clock_[warp.index]; });
}

// All that took part know what the others did; the clocks move on together, which keeps the reads of many warps, of
// which only the latest clock is remembered, comparable.
void Checker::barrier_opened(uint32_t warps) {
  std::array<uint32_t, kMaxWarps> joined = clock_;
  uint32_t latest = 0;
  for_lanes(warps, [&](int w) { latest = std::max(latest, clock_[static_cast<size_t>(w)]); });
  for (size_t u = 0; u < kMaxWarps; ++u) {
    if ((warps >> u & 1) == 0) joined[u] = 0;
    for_lanes(warps, [&](int w) { joined[u] = std::max(joined[u], known_[static_cast<size_t>(w)][u]); });
    if ((warps >> u & 1) != 0) joined[u] = latest;
  }
  for_lanes(warps, [&](int w) {
    const auto i = static_cast<size_t>(w);
    known_[i] = joined;
    clock_[i] = latest + 1;
    lane_synced_[i].fill(latest + 1);
  });
}

void Checker::shared(const Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                     const uint64_t* offsets) {
  const auto pc = static_cast<int32_t>(&instruction - block_->launch->kernel->code.data());
  for_lanes(mask, [&](int lane) {
    const Event event{&warp, lane, access, bytes, pc, true};
    if (check_races_)
      shared_shadow_.for_each(offsets[lane], bytes,
                              [&](ShadowRecord& record, uint64_t at) { visit(record, event, at); });
    if (check_initialised_) check_initialised(event, offsets[lane]);
  });
}

void Checker::global(const Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
                     const uint64_t* addresses) {
  const auto pc = static_cast<int32_t>(&instruction - block_->launch->kernel->code.data());
  const auto base = reinterpret_cast<uint64_t>(arena_begin());
  if (is_atomic(access)) {
    acquired_ = true;
    if (fenced_) released_.insert(block_number_);
  }
  for_lanes(mask, [&](int lane) {
    const Event event{&warp, lane, access, bytes, pc, false};
    if (check_races_)
      global_shadow_.for_each(addresses[lane] - base, bytes,
                              [&](ShadowRecord& record, uint64_t at) { visit(record, event, at); });
    if (check_initialised_) check_initialised(event, addresses[lane]);
  });
}

void Checker::copy_completed(const Warp& warp, const Instruction& instruction, int lane, uint32_t offset,
                             uint32_t bytes) {
  if (check_initialised_) std::memset(shared_written_.data() + offset, 1, bytes);
  if (!check_races_) return;
  const auto pc = static_cast<int32_t>(&instruction - block_->launch->kernel->code.data());
  const Event event{&warp, lane, Access::kStore, bytes, pc, true};
  shared_shadow_.for_each(offset, bytes, [&](ShadowRecord& record, uint64_t) { note_write(record, event); });
}

void Checker::check_initialised(const Event& event, uint64_t offset) {
  const auto* address = reinterpret_cast<const std::byte*>(offset);
  if (reads(event.access)) {
    bool known = true;
    if (event.is_shared) {
      const auto first = shared_written_.begin() + static_cast<std::ptrdiff_t>(offset);
      known = std::all_of(first, first + event.bytes, [](uint8_t written) { return written != 0; });
    } else {
      known = is_initialised(address, event.bytes);
    }
    if (!known) {
      const std::string where =
          event.is_shared
              ? "shared memory at offset " + std::to_string(offset)
              : "global memory at offset " + std::to_string(address - find_buffer(address).begin) + " of a buffer of " +
                    std::to_string(find_buffer(address).end - find_buffer(address).begin) + " bytes";
      throw Fault{"uninitialised",
                  std::string(verb(event.access)) + " of " + std::to_string(event.bytes) +
                      " bytes that nothing wrote: " + where,
                  event.lane};
    }
  }
  if (!writes(event.access) || event.access == Access::kAsyncStore) return;
  if (event.is_shared)
    std::memset(shared_written_.data() + offset, 1, event.bytes);
  else
    mark_initialised(address, event.bytes);
}

// Whether what `warp` did at `clock`, in this block, comes before the event.
bool Checker::ordered(uint32_t warp, uint32_t clock, const Event& event) const {
  const uint32_t own = event.warp->index;
  if (warp == own) return clock < lane_synced_[own][static_cast<size_t>(event.lane)];
  return clock <= known_[own][warp];
}

bool Checker::blocks_ordered(uint32_t earlier) const {
  return acquired_ && earlier != ShadowRecord::kManyBlocks && released_.contains(earlier);
}

bool Checker::ordered_after_write(const ShadowRecord& record, const Event& event) const {
  if (record.atomic_write && is_atomic(event.access)) return true;
  if (record.write_block != block_number_) return event.is_shared || blocks_ordered(record.write_block);
  if (record.in_flight) return false;
  if (record.writer == event.thread() && event.access != Access::kWarpLoad) return true;
  return ordered(record.writer / kWarpSize, record.write_clock, event);
}

bool Checker::ordered_after_reads(const ShadowRecord& record, const Event& event) const {
  return (record.atomic_reads && is_atomic(event.access)) || reads_happen_before(record, event);
}

bool Checker::reads_happen_before(const ShadowRecord& record, const Event& event) const {
  if (record.read_block != block_number_) return event.is_shared || blocks_ordered(record.read_block);
  if (record.reader == event.thread()) return true;
  bool all = true;
  for_lanes(record.reader_warps,
            [&](int warp) { all = all && ordered(static_cast<uint32_t>(warp), record.read_clock, event); });
  return all;
}

void Checker::visit(ShadowRecord& record, const Event& event, uint64_t offset) {
  if (record.written && !ordered_after_write(record, event)) race(record, event, offset, true);
  if (writes(event.access)) {
    if (record.read && !ordered_after_reads(record, event)) race(record, event, offset, false);
    note_write(record, event);
  } else {
    note_read(record, event);
  }
}

void Checker::note_write(ShadowRecord& record, const Event& event) {
  record.written = true;
  record.atomic_write = is_atomic(event.access);
  record.in_flight = event.access == Access::kAsyncStore;
  record.writer = event.thread();
  record.write_block = block_number_;
  record.write_clock = clock_[event.warp->index];
  record.write_pc = event.pc;
  record.read = false;
  record.reader_warps = 0;
}

void Checker::note_read(ShadowRecord& record, const Event& event) {
  const uint32_t warp_bit = 1u << event.warp->index, clock = clock_[event.warp->index];
  const uint16_t thread = event.access == Access::kWarpLoad ? ShadowRecord::kManyThreads : event.thread();
  // Reads that happen before this one are ordered before whatever this one is ordered before: it stands for them. A
  // lane that reads after a barrier and then writes must not meet "several threads" of before the barrier.
  if (!record.read || (event.is_shared && record.read_block != block_number_) || reads_happen_before(record, event)) {
    record.read = true;
    record.atomic_reads = is_atomic(event.access);
    record.reader = thread;
    record.read_block = block_number_;
    record.read_clock = clock;
    record.reader_warps = warp_bit;
  } else {
    record.atomic_reads = record.atomic_reads && is_atomic(event.access);
    if (record.read_block != block_number_) record.read_block = ShadowRecord::kManyBlocks;
    if (record.reader != thread) record.reader = ShadowRecord::kManyThreads;
    record.read_clock = std::max(record.read_clock, clock);
    record.reader_warps |= warp_bit;
  }
  record.read_pc = event.pc;
}

void Checker::race(const ShadowRecord& record, const Event& event, uint64_t offset, bool with_write) const {
  std::string where = "shared memory at offset " + std::to_string(offset);
  if (!event.is_shared) {
    const Range buffer = find_buffer(arena_begin() + offset);
    where = "global memory at offset " + std::to_string(arena_begin() + offset - buffer.begin) + " of a buffer of " +
            std::to_string(buffer.end - buffer.begin) + " bytes";
  }
  const uint16_t thread = with_write ? record.writer : record.reader;
  const uint32_t block = with_write ? record.write_block : record.read_block;
  std::string who = thread == ShadowRecord::kManyThreads
                        ? "several threads"
                        : "thread " + std::to_string(thread) + " (counted with x fastest)";
  if (block == ShadowRecord::kManyBlocks)
    who = "threads of several blocks";
  else if (block != block_number_)
    who += " of block " + std::to_string(block);
  const char* what = with_write ? (record.in_flight ? " cp.async still in flight, by " : " write by ") : " read by ";
  throw Fault{"race",
              std::string(verb(event.access)) + " of " + where + " is not ordered after the" + what + who + ", " +
                  describe_instruction(*block_->launch->kernel, with_write ? record.write_pc : record.read_pc) + "\n ",
              event.lane};
}

}  // namespace ptxsim
