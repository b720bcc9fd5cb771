// Branches, calls, exits, barriers of the block.
#include "../checker.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

void nothing(Warp&, const Instruction&, Mask) {}

void decode_bra(Decoder& decoder) {
  decoder.modifiers().take("uni");
  decoder.branch(decoder.operand(0), false);
}

void decode_brx(Decoder& decoder) {
  decoder.modifiers().take("uni");
  if (!decoder.modifiers().take("idx")) decoder.unknown();
  const uint32_t index = decoder.source(0, 4);
  decoder.branch(decoder.operand(1), true);
  decoder.last().operand[0] = index;
}

void decode_call(Decoder& decoder) {
  decoder.modifiers().take("uni");
  decoder.call();
}

template <bool kWholeKernel>
void decode_leave(Decoder& decoder) {
  decoder.modifiers().take("uni");
  decoder.leave(kWholeKernel);
}

void decode_trap(Decoder& decoder) {
  decoder.emit(
      [](Warp&, const Instruction&, Mask mask) { throw Fault{"trap", "the kernel trapped", std::countr_zero(mask)}; });
}

// Results of bar.red, written when the barrier opens. Operand 3: the destination.
void write_count(Warp& warp, const Instruction& instruction, Mask mask) {
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[3]);
  for_lanes(mask,
            [&](int lane) { d[lane] = warp.block->barriers[warp.barrier[static_cast<size_t>(lane)]].result_sum; });
}

template <bool kAll>
void write_vote(Warp& warp, const Instruction& instruction, Mask mask) {
  Mask value = 0;
  for_lanes(mask, [&](int lane) {
    const Barrier& barrier = warp.block->barriers[warp.barrier[static_cast<size_t>(lane)]];
    value |= static_cast<Mask>(kAll ? barrier.result_sum == barrier.result_participants : barrier.result_sum != 0)
             << lane;
  });
  set_predicate(warp, instruction.operand[3], mask, value);
}

void synchronise_warp(Warp& warp, const Instruction&, Mask mask) {
  if (Checker* checker = warp.block->launch->checker) checker->warp_synchronised(warp, mask);
}

void decode_warp_barrier(Decoder& decoder) {
  if (!decoder.modifiers().take("sync")) decoder.unknown();
  const uint32_t members = decoder.source(0, 4);
  Instruction& instruction = decoder.emit(synchronise_warp);
  instruction.flow = Flow::kSync;
  instruction.members = members;
}

// bar.{sync,arrive,red} are barrier.{...}.aligned.
void decode_barrier(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  if (modifiers.take("warp")) return decode_warp_barrier(decoder);
  modifiers.take("cta");
  const std::string what = modifiers.take_any({"sync", "arrive", "red"});
  if (what.empty()) decoder.unknown();
  const bool aligned = modifiers.take("aligned") || modifiers.base() == "bar";
  uint32_t mode = (aligned ? kBarrierAligned : 0u) | (what == "arrive" ? kBarrierArriveOnly : 0u) |
                  (what == "red" ? kBarrierReduce : 0u);
  const std::string reduction = modifiers.take_any({"popc", "and", "or"}), type = modifiers.take_type();
  if (what == "red" && type != (reduction == "popc" ? "u32" : "pred")) decoder.unknown();
  const size_t first = what == "red" ? 1 : 0, last = decoder.num_operands() - (what == "red" ? 1 : 0);
  const uint32_t number = decoder.source(first, 4), count = last > first + 1 ? decoder.source(first + 1, 4) : kNone;
  uint32_t vote = kNone, d = kNone;
  if (what == "red") {
    vote = decoder.source(last, kPredicate);
    d = decoder.destination(0, reduction == "popc" ? 4 : kPredicate);
  }
  const Execute finish = reduction == "popc"  ? write_count
                         : reduction == "and" ? write_vote<true>
                         : reduction == "or"  ? write_vote<false>
                                              : nothing;
  Instruction& instruction = decoder.emit(finish, {number, count, vote, d});
  instruction.flow = Flow::kBarrier;
  instruction.mode = mode;
  instruction.mode2 = count != kNone;
}

void decode_no_effect(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  modifiers.take_any({"inc", "dec", "wait", "launch_dependents"});
  modifiers.take("sync");
  modifiers.take("aligned");
  modifiers.take_type();
  decoder.emit(nothing);
}

}  // namespace

void add_control_opcodes(OpcodeTable& table) {
  table["bra"] = decode_bra;
  table["brx"] = decode_brx;
  table["call"] = decode_call;
  table["ret"] = decode_leave<false>;
  table["exit"] = decode_leave<true>;
  table["trap"] = table["brkpt"] = decode_trap;
  table["bar"] = table["barrier"] = decode_barrier;
  table["nanosleep"] = table["setmaxnreg"] = table["griddepcontrol"] = table["pmevent"] = decode_no_effect;
}

}  // namespace ptxsim
