// bar.sync, bar.arrive, bar.red of the block.
#include <bit>

#include "checker.h"
#include "lanes.h"
#include "scheduler.h"

namespace ptxsim {

// An aligned barrier is executed by all live lanes of a warp together: those that come first wait here.
void BlockRunner::arrive_at_barrier(Warp& warp, const Group& group, Mask active) {
  const Instruction& instruction = kernel_.code[static_cast<size_t>(group.pc)];
  split(warp, group, active, group.pc);
  if ((instruction.mode & kBarrierAligned) == 0) return enter_barrier(warp, group.pc, active);
  warp.waiting |= active;
  retry_waiting(warp);
}

// Lets a warp into an aligned barrier if all its live lanes wait for the same one.
void BlockRunner::retry_waiting(Warp& warp) {
  if (warp.waiting == 0 || warp.waiting != warp.live) return;
  const int32_t pc = warp.pc[static_cast<size_t>(std::countr_zero(warp.waiting))];
  bool same = true;
  for_lanes(warp.waiting, [&](int lane) { same = same && warp.pc[static_cast<size_t>(lane)] == pc; });
  if (same && kernel_.code[static_cast<size_t>(pc)].flow == Flow::kBarrier) enter_barrier(warp, pc, warp.waiting);
}

void BlockRunner::enter_barrier(Warp& warp, int32_t pc, Mask lanes) {
  const Instruction& instruction = kernel_.code[static_cast<size_t>(pc)];
  const int first = std::countr_zero(lanes);
  const uint32_t number = warp.lanes<uint32_t>(instruction.operand[0])[first];
  if (number >= kNumBarriers) throw Fault{"launch", "barrier " + std::to_string(number) + " does not exist", first};
  Barrier& barrier = block_.barriers[number];
  const uint32_t expected = instruction.mode2 != 0 ? warp.lanes<uint32_t>(instruction.operand[1])[first] : 0;
  if (barrier.arrived_threads != 0 && barrier.expected != expected) {
    throw Fault{"divergence", "barrier " + std::to_string(number) + " is used with different numbers of threads",
                first};
  }
  if (expected % kWarpSize != 0)
    throw Fault{"launch", "the number of threads of a barrier is no multiple of 32", first};
  const auto count = static_cast<uint32_t>(std::popcount(lanes));
  barrier.expected = expected;
  barrier.arrived_threads += count;
  barrier.warps |= 1u << warp.index;
  barrier.arrived_counted += (instruction.mode & kBarrierAligned) != 0 ? uint32_t{kWarpSize} : count;
  if ((instruction.mode & kBarrierReduce) != 0) {
    barrier.sum += static_cast<uint32_t>(std::popcount(warp.predicate(instruction.operand[2]) & lanes));
    barrier.participants += count;
  }
  warp.waiting &= ~lanes;
  for_lanes(lanes, [&](int lane) {
    const auto i = static_cast<size_t>(lane);
    warp.pc[i] = pc + 1;
    warp.barrier[i] = static_cast<uint8_t>(number);
    warp.barrier_pc[i] = pc;
  });
  if ((instruction.mode & kBarrierArriveOnly) == 0) warp.at_barrier |= lanes;
  open_complete_barriers();
}

void BlockRunner::open_complete_barriers() {
  for (uint8_t number = 0; number < kNumBarriers; ++number) {
    const Barrier& barrier = block_.barriers[number];
    if (barrier.arrived_threads == 0) continue;
    const bool complete =
        barrier.expected == 0 ? barrier.arrived_threads >= live_threads_ : barrier.arrived_counted >= barrier.expected;
    if (complete) open_barrier(number);
  }
}

void BlockRunner::open_barrier(uint8_t number) {
  Barrier& barrier = block_.barriers[number];
  barrier.result_sum = barrier.sum;
  barrier.result_participants = barrier.participants;
  barrier.arrived_threads = barrier.arrived_counted = barrier.sum = barrier.participants = 0;
  if (launch_.checker != nullptr) launch_.checker->barrier_opened(barrier.warps);
  barrier.warps = 0;
  for (Warp& warp : block_.warps) {
    Mask lanes = 0;
    for_lanes(warp.at_barrier,
              [&](int lane) { lanes |= static_cast<Mask>(warp.barrier[static_cast<size_t>(lane)] == number) << lane; });
    warp.at_barrier &= ~lanes;
    while (lanes != 0) {  // lanes of one instruction together: it may write the result of a bar.red
      const int32_t pc = warp.barrier_pc[static_cast<size_t>(std::countr_zero(lanes))];
      Mask same = 0;
      for_lanes(lanes,
                [&](int lane) { same |= static_cast<Mask>(warp.barrier_pc[static_cast<size_t>(lane)] == pc) << lane; });
      const Instruction& instruction = kernel_.code[static_cast<size_t>(pc)];
      instruction.execute(warp, instruction, same);
      lanes &= ~same;
    }
  }
}

}  // namespace ptxsim
