// Data races, and reads of bytes that nothing wrote. Costs nothing when Launch::checker is null.
//
// What orders two accesses of different threads:
//   - a barrier of the block that both threads' warps took part in between them, or a chain of such (vector clocks);
//   - within a warp, bar.warp.sync of the later thread in between; a shuffle or a vote orders no memory;
//   - both are atomic (atom, red, volatile, relaxed, acquire, release);
//   - between blocks, the "last block" pattern: the earlier block executed a fence of the whole device and then an
//   atomic,
//     the later one an atomic before its access.
// A cp.async writes from its issue to the wait that completes it: its destination may not be touched in between, by its
// own thread either; from then on it is a write of its thread at the time of the wait.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "machine.h"
#include "shadow.h"

namespace ptxsim {

enum class Access : uint8_t {
  kLoad,
  kStore,
  kAtomic,
  kStrongLoad,   // ld.volatile, .relaxed, .acquire
  kStrongStore,  // st.volatile, .relaxed, .release
  kWarpLoad,     // ldmatrix: the row goes to other lanes than the one that gave its address
  kAsyncStore,   // issue of a cp.async
};

constexpr bool reads(Access a) {
  return a == Access::kLoad || a == Access::kAtomic || a == Access::kStrongLoad || a == Access::kWarpLoad;
}
constexpr bool writes(Access a) {
  return a == Access::kStore || a == Access::kAtomic || a == Access::kStrongStore || a == Access::kAsyncStore;
}
constexpr bool is_atomic(Access a) {
  return a == Access::kAtomic || a == Access::kStrongLoad || a == Access::kStrongStore;
}

class Checker {
 public:
  void begin_launch(const Options& options);
  void begin_block(const Block& block);
  // Offsets in shared memory; addresses of global memory. Throws Fault("race" | "uninitialised").
  void shared(const Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
              const uint64_t* offsets);
  void global(const Warp& warp, const Instruction& instruction, Mask mask, Access access, uint32_t bytes,
              const uint64_t* addresses);
  void copy_completed(const Warp& warp, const Instruction& instruction, int lane, uint32_t offset, uint32_t bytes);
  void warp_synchronised(const Warp& warp, Mask mask);
  void barrier_opened(uint32_t warps);  // bit per warp that took part
  void device_fence() { fenced_ = true; }

 private:
  static constexpr size_t kMaxWarps = 32;

  // An access in the making.
  struct Event {
    const Warp* warp;
    int lane;
    Access access;
    uint32_t bytes;
    int32_t pc;
    bool is_shared;
    uint16_t thread() const { return static_cast<uint16_t>(warp->thread(lane)); }
  };

  void visit(ShadowRecord& record, const Event& event, uint64_t offset);
  bool ordered_after_write(const ShadowRecord& record, const Event& event) const;
  bool ordered_after_reads(const ShadowRecord& record, const Event& event) const;
  bool reads_happen_before(const ShadowRecord& record, const Event& event) const;
  bool ordered(uint32_t warp, uint32_t clock, const Event& event) const;
  bool blocks_ordered(uint32_t earlier) const;
  void note_read(ShadowRecord& record, const Event& event);
  void note_write(ShadowRecord& record, const Event& event);
  void check_initialised(const Event& event, uint64_t offset);
  [[noreturn]] void race(const ShadowRecord& record, const Event& event, uint64_t offset, bool with_write) const;

  bool check_races_ = false, check_initialised_ = false;
  const Block* block_ = nullptr;
  uint32_t block_number_ = 0;
  ShadowMemory shared_shadow_, global_shadow_;
  std::vector<uint8_t> shared_written_;  // per byte of the block's shared memory

  uint32_t clock_base_ = 0;                                             // above all clocks of earlier blocks
  std::array<uint32_t, kMaxWarps> clock_;                               // of each warp
  std::array<std::array<uint32_t, kMaxWarps>, kMaxWarps> known_;        // [w][u]: w has seen what u did up to then
  std::array<std::array<uint32_t, kWarpSize>, kMaxWarps> lane_synced_;  // clock after a lane's last synchronisation

  bool fenced_ = false, acquired_ = false;
  std::set<uint32_t> released_;  // blocks
};

// Called by allocate(): none of these bytes is initialised.
void note_allocation(const std::byte* begin, size_t num_bytes);

}  // namespace ptxsim
