#include "scheduler.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "access.h"
#include "lanes.h"
#include "memory.h"

namespace ptxsim {
namespace {

constexpr int32_t kNowhere = std::numeric_limits<int32_t>::max();
// A warp's turn in the default order: long, but not endless, since another warp may have to write what it waits for.
constexpr int64_t kTurn = int64_t{1} << 20;

void move_to(Warp& warp, Mask lanes, int32_t pc) {
  for_lanes(lanes, [&](int lane) { warp.pc[static_cast<size_t>(lane)] = pc; });
}

}  // namespace

void BlockRunner::run(uint64_t index) {
  reset(index);
  std::vector<size_t> order(block_.warps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  while (live_threads_ != 0) {
    if (options_.shuffle) std::shuffle(order.begin(), order.end(), random_);
    int64_t issued = 0;
    for (const size_t warp : order) {
      issued += run_warp(block_.warps[warp], options_.shuffle ? static_cast<int64_t>(1 + random_() % 64) : kTurn);
    }
    if (issued == 0 && live_threads_ != 0) report_stuck();
  }
  check_copies_done();
}

int64_t BlockRunner::run_warp(Warp& warp, int64_t budget) {
  int64_t issued = 0;
  while (issued < budget) {
    const Mask ready = warp.live & ~warp.at_barrier & ~warp.waiting;
    if (ready == 0) break;
    Group group = lowest_group(warp, ready);
    try {
      issued += run_group(warp, group, budget - issued);
    } catch (const Fault& fault) {
      report(warp, group.pc, fault);
    }
  }
  return issued;
}

BlockRunner::Group BlockRunner::lowest_group(const Warp& warp, Mask ready) const {
  Group group{kNowhere, 0, kNowhere};
  for_lanes(ready, [&](int lane) {
    const int32_t pc = warp.pc[static_cast<size_t>(lane)];
    if (pc < group.pc) {
      group.limit = group.pc;
      group.pc = pc;
      group.mask = 0;
    } else if (pc > group.pc) {
      group.limit = std::min(group.limit, pc);
    }
    if (pc == group.pc) group.mask |= Mask{1} << lane;
  });
  return group;
}

// Steps the group until it splits, waits, meets other lanes or has used up its budget.
int64_t BlockRunner::run_group(Warp& warp, Group& group, int64_t budget) {
  const Instruction* const code = kernel_.code.data();
  const Mask mask = group.mask;
  int64_t steps = 0;
  uint64_t counted = 0;
  bool together = true;
  while (together && steps < budget) {
    const Instruction& instruction = code[group.pc];
    const Mask active =
        instruction.guard == kNone ? mask : mask & (warp.predicate(instruction.guard) ^ instruction.guard_invert);
    counted += instruction.counted;
    ++steps;
    if (instruction.flow == Flow::kPlain) {
      if (active != 0) instruction.execute(warp, instruction, active);
      ++group.pc;
    } else if (instruction.flow == Flow::kBranch && (active == 0 || active == mask)) {
      group.pc = active == 0 ? group.pc + 1 : instruction.target;
    } else {
      together = run_special(warp, group, active);
    }
    if (together && (group.pc >= group.limit || steps >= budget)) {
      move_to(warp, mask, group.pc);
      break;
    }
  }
  launch_.warp_instructions += counted;
  launch_.thread_instructions += counted * static_cast<uint64_t>(std::popcount(mask));
  return steps;
}

// Executes an instruction that is more than a step. True if the group goes on together at group.pc; otherwise the
// lanes' own pc are set.
bool BlockRunner::run_special(Warp& warp, Group& group, Mask active) {
  const Instruction& instruction = kernel_.code[static_cast<size_t>(group.pc)];
  if (active == 0) {
    ++group.pc;
    return true;
  }
  switch (instruction.flow) {
    case Flow::kPlain:
    case Flow::kBranch:
      split(warp, group, active, instruction.target);
      return false;
    case Flow::kIndexedBranch:
      indexed_branch(warp, group, active);
      return false;
    case Flow::kExit:
      exit_lanes(warp, group, active);
      return false;
    case Flow::kSync:
      if (active == group.mask && members(warp, instruction, std::countr_zero(active)) == active) {
        instruction.execute(warp, instruction, active);
        ++group.pc;
        return true;
      }
      arrive_at_sync(warp, group, active);
      return false;
    case Flow::kBarrier:
      arrive_at_barrier(warp, group, active);
      return false;
  }
  return false;
}

void BlockRunner::split(Warp& warp, const Group& group, Mask taken, int32_t target) {
  move_to(warp, taken, target);
  move_to(warp, group.mask & ~taken, group.pc + 1);
}

void BlockRunner::indexed_branch(Warp& warp, const Group& group, Mask active) {
  const Instruction& instruction = kernel_.code[static_cast<size_t>(group.pc)];
  const uint32_t* index = warp.lanes<uint32_t>(instruction.operand[0]);
  move_to(warp, group.mask & ~active, group.pc + 1);
  for_lanes(active, [&](int lane) {
    if (index[lane] >= instruction.mode2) throw Fault{"out-of-bounds", "brx.idx beyond its list of labels", lane};
    warp.pc[static_cast<size_t>(lane)] = kernel_.branch_targets[instruction.mode + index[lane]];
  });
}

void BlockRunner::exit_lanes(Warp& warp, const Group& group, Mask active) {
  move_to(warp, group.mask & ~active, group.pc + 1);
  warp.live &= ~active;
  live_threads_ -= static_cast<uint32_t>(std::popcount(active));
  retry_waiting(warp);
  open_complete_barriers();
}

Mask BlockRunner::members(Warp& warp, const Instruction& instruction, int lane) const {
  return instruction.members == kNone ? kFullMask : warp.lanes<uint32_t>(instruction.members)[lane];
}

void BlockRunner::arrive_at_sync(Warp& warp, const Group& group, Mask active) {
  const Instruction& instruction = kernel_.code[static_cast<size_t>(group.pc)];
  split(warp, group, active, group.pc);
  warp.waiting |= active;
  Mask arrived = 0;
  for_lanes(warp.waiting,
            [&](int lane) { arrived |= static_cast<Mask>(warp.pc[static_cast<size_t>(lane)] == group.pc) << lane; });
  while (arrived != 0) {
    const int lane = std::countr_zero(arrived);
    const Mask needed = members(warp, instruction, lane);
    if ((needed >> lane & 1) == 0) throw Fault{"mask", "the lane is not in its own member mask", lane};
    if ((needed & ~warp.live) != 0)
      throw Fault{"mask", "the member mask names lanes that have exited or do not exist", lane};
    if ((arrived & needed) == needed) {
      warp.waiting &= ~needed;
      instruction.execute(warp, instruction, needed);
      move_to(warp, needed, group.pc + 1);
    }
    arrived &= ~needed;
  }
}

void run_launch(Launch& launch, const Options& options) {
  BlockRunner runner(launch, options);
  std::vector<uint64_t> order(launch.grid.count());
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (options.shuffle) {
    std::mt19937_64 random(options.seed);
    std::shuffle(order.begin(), order.end(), random);
  }
  for (const uint64_t index : order) runner.run(index);
}

}  // namespace ptxsim
