// What lanes of a warp tell each other: shfl, vote, match, redux, activemask, elect.
#include <algorithm>

#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

enum ShuffleMode : uint32_t { kUp, kDown, kButterfly, kIndexed };

struct ShuffleSource {
  int lane;
  bool in_range;
};

// PTX ISA, shfl: `bounds` holds the segment mask in bits 8-12 and the clamp in bits 0-4.
ShuffleSource shuffle_source(uint32_t mode, int lane, uint32_t distance, uint32_t bounds) {
  const int b = static_cast<int>(distance & 31), clamp = static_cast<int>(bounds & 31),
            segment = static_cast<int>(bounds >> 8 & 31);
  const int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
  ShuffleSource source{};
  switch (mode) {
    case kUp:
      source = {lane - b, lane - b >= highest};
      break;
    case kDown:
      source = {lane + b, lane + b <= highest};
      break;
    case kButterfly:
      source = {lane ^ b, (lane ^ b) <= highest};
      break;
    default:
      source = {lowest | (b & ~segment), (lowest | (b & ~segment)) <= highest};
      break;
  }
  if (!source.in_range) source.lane = lane;
  return source;
}

// Operands: d, p or kNone, a, distance, bounds.
void shuffle(Warp& warp, const Instruction& instruction, Mask mask) {
  const uint32_t *a = warp.lanes<uint32_t>(instruction.operand[2]),
                 *distance = warp.lanes<uint32_t>(instruction.operand[3]),
                 *bounds = warp.lanes<uint32_t>(instruction.operand[4]);
  uint32_t values[kWarpSize];
  Mask in_range = 0;
  for_lanes(mask, [&](int lane) {
    const ShuffleSource source = shuffle_source(instruction.mode, lane, distance[lane], bounds[lane]);
    if ((mask >> source.lane & 1) == 0)
      throw Fault{"mask", "shfl reads lane " + std::to_string(source.lane) + ", which does not take part", lane};
    values[lane] = a[source.lane];
    in_range |= static_cast<Mask>(source.in_range) << lane;
  });
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = values[lane]; });
  if (instruction.operand[1] != kNone) set_predicate(warp, instruction.operand[1], mask, in_range);
}

Instruction& emit_sync(Decoder& decoder, Execute execute, std::initializer_list<uint32_t> operands, uint32_t members) {
  Instruction& instruction = decoder.emit(execute, operands);
  instruction.flow = Flow::kSync;
  instruction.members = members;
  return instruction;
}

void decode_shfl(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool sync = modifiers.take("sync");
  const std::string mode = modifiers.take_any({"up", "down", "bfly", "idx"});
  if (!sync || mode.empty() || modifiers.take_type() != "b32") decoder.unknown();
  const bool two = decoder.num_operands() == 6;
  const size_t first = two ? 2 : 1;
  const uint32_t d = decoder.destination(0, 4), p = two ? decoder.destination(1, kPredicate) : kNone;
  const uint32_t a = decoder.source(first, 4), b = decoder.source(first + 1, 4), c = decoder.source(first + 2, 4),
                 members = decoder.source(first + 3, 4);
  emit_sync(decoder, shuffle, {d, p, a, b, c}, members).mode = mode == "up"     ? kUp
                                                               : mode == "down" ? kDown
                                                               : mode == "bfly" ? kButterfly
                                                                                : kIndexed;
}

void ballot(Warp& warp, const Instruction& instruction, Mask mask) {
  const Mask votes = warp.predicate(instruction.operand[1]) & mask;
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = votes; });
}

enum VoteMode : uint32_t { kAll, kAny, kUniform };

void vote(Warp& warp, const Instruction& instruction, Mask mask) {
  const Mask votes = warp.predicate(instruction.operand[1]) & mask;
  const bool result = instruction.mode == kAll   ? votes == mask
                      : instruction.mode == kAny ? votes != 0
                                                 : votes == mask || votes == 0;
  set_predicate(warp, instruction.operand[0], mask, result ? kFullMask : 0);
}

void decode_vote(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool sync = modifiers.take("sync");
  const std::string mode = modifiers.take_any({"ballot", "all", "any", "uni"});
  const std::string type = modifiers.take_type();
  if (!sync || mode.empty() || type != (mode == "ballot" ? "b32" : "pred")) decoder.unknown();
  const uint32_t d = decoder.destination(0, mode == "ballot" ? 4 : kPredicate);
  const uint32_t a = decoder.source(1, kPredicate), members = decoder.source(2, 4);
  emit_sync(decoder, mode == "ballot" ? ballot : vote, {d, a}, members).mode = mode == "any"   ? kAny
                                                                               : mode == "uni" ? kUniform
                                                                                               : kAll;
}

// match.any: the lanes that have this lane's value. match.all: the whole mask if all agree, else 0.
template <class T, bool kEveryone>
void match(Warp& warp, const Instruction& instruction, Mask mask) {
  const T* a = warp.lanes<T>(instruction.operand[2]);
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  const auto equal_to = [&](T value) {
    Mask equal = 0;
    for_lanes(mask, [&](int lane) { equal |= static_cast<Mask>(a[lane] == value) << lane; });
    return equal;
  };
  uint32_t results[kWarpSize];
  for_lanes(mask, [&](int lane) {
    const Mask equal = equal_to(a[lane]);
    results[lane] = kEveryone && equal != mask ? 0 : equal;
  });
  Mask agreed = 0;
  for_lanes(mask, [&](int lane) {
    d[lane] = results[lane];
    agreed |= static_cast<Mask>(results[lane] != 0) << lane;
  });
  if (instruction.operand[1] != kNone) set_predicate(warp, instruction.operand[1], mask, agreed);
}

void decode_match(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool all = modifiers.take_any({"all", "any"}) == "all";
  if (!modifiers.take("sync")) decoder.unknown();
  const uint32_t bytes = type_bytes(modifiers.take_type());
  if (bytes != 4 && bytes != 8) decoder.unknown();
  const bool two = decoder.num_operands() == 4;
  const size_t first = two ? 2 : 1;
  const uint32_t d = decoder.destination(0, 4), p = two ? decoder.destination(1, kPredicate) : kNone;
  const uint32_t a = decoder.source(first, bytes), members = decoder.source(first + 1, 4);
  const Execute execute = bytes == 4 ? (all ? match<uint32_t, true> : match<uint32_t, false>)
                                     : (all ? match<uint64_t, true> : match<uint64_t, false>);
  emit_sync(decoder, execute, {d, p, a}, members);
}

template <auto F, class T>
void reduce(Warp& warp, const Instruction& instruction, Mask mask) {
  const T* a = warp.lanes<T>(instruction.operand[1]);
  T result = a[std::countr_zero(mask)];
  for_lanes(mask & (mask - 1), [&](int lane) { result = F(result, a[lane]); });
  T* d = warp.lanes<T>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = result; });
}

template <class T>
Execute reduction(const std::string& operation) {
  if (operation == "add")
    return reduce<[](T a, T b) { return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }, T>;
  if (operation == "min") return reduce<[](T a, T b) { return std::min(a, b); }, T>;
  if (operation == "max") return reduce<[](T a, T b) { return std::max(a, b); }, T>;
  if (operation == "and") return reduce<[](T a, T b) { return static_cast<T>(a & b); }, T>;
  if (operation == "or") return reduce<[](T a, T b) { return static_cast<T>(a | b); }, T>;
  if (operation == "xor") return reduce<[](T a, T b) { return static_cast<T>(a ^ b); }, T>;
  return nullptr;
}

void decode_redux(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool sync = modifiers.take("sync");
  const std::string operation = modifiers.take_any({"add", "min", "max", "and", "or", "xor"}),
                    type = modifiers.take_type();
  const Execute execute = type == "s32"                    ? reduction<int32_t>(operation)
                          : type == "u32" || type == "b32" ? reduction<uint32_t>(operation)
                                                           : nullptr;
  if (!sync || execute == nullptr) decoder.unknown();
  const uint32_t d = decoder.destination(0, 4), a = decoder.source(1, 4), members = decoder.source(2, 4);
  emit_sync(decoder, execute, {d, a}, members);
}

void decode_activemask(Decoder& decoder) {
  if (decoder.modifiers().take_type() != "b32") decoder.unknown();
  const uint32_t d = decoder.destination(0, 4);
  decoder.emit(
      [](Warp& warp, const Instruction& instruction, Mask mask) {
        uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
        for_lanes(mask, [&](int lane) { d[lane] = mask; });
      },
      {d});
}

// elect.sync d|p, members: the lowest lane.
void elect(Warp& warp, const Instruction& instruction, Mask mask) {
  const int leader = std::countr_zero(mask);
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<uint32_t>(leader); });
  set_predicate(warp, instruction.operand[1], mask, Mask{1} << leader);
}

void decode_elect(Decoder& decoder) {
  if (!decoder.modifiers().take("sync")) decoder.unknown();
  const uint32_t d = decoder.destination(0, 4), p = decoder.destination(1, kPredicate), members = decoder.source(2, 4);
  emit_sync(decoder, elect, {d, p}, members);
}

}  // namespace

void add_warp_opcodes(OpcodeTable& table) {
  table["shfl"] = decode_shfl;
  table["vote"] = decode_vote;
  table["match"] = decode_match;
  table["redux"] = decode_redux;
  table["activemask"] = decode_activemask;
  table["elect"] = decode_elect;
}

}  // namespace ptxsim
