// mov, cvta, isspacep, and the clocks.
#include "../access.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

template <class T>
Execute copy_lanes() {
  return map<[](T a) { return a; }, T, T>;
}

// mov.b64 {a, b}, d and the like. mode: bytes of an element; operands: elements..., then the whole.
template <class Whole, class Part>
void unpack(Warp& warp, const Instruction& instruction, Mask mask) {
  constexpr size_t kCount = sizeof(Whole) / sizeof(Part);
  const Whole* whole = warp.lanes<Whole>(instruction.operand[kCount]);
  for_lanes(mask, [&](int lane) {
    const Whole value = whole[lane];
    for (size_t i = 0; i < kCount; ++i)
      warp.lanes<Part>(instruction.operand[i])[lane] = static_cast<Part>(value >> (8 * sizeof(Part) * i));
  });
}

template <class Whole, class Part>
void pack(Warp& warp, const Instruction& instruction, Mask mask) {
  constexpr size_t kCount = sizeof(Whole) / sizeof(Part);
  Whole* whole = warp.lanes<Whole>(instruction.operand[kCount]);
  for_lanes(mask, [&](int lane) {
    Whole value = 0;
    for (size_t i = 0; i < kCount; ++i)
      value |= static_cast<Whole>(warp.lanes<Part>(instruction.operand[i])[lane]) << (8 * sizeof(Part) * i);
    whole[lane] = value;
  });
}

template <bool kPack>
Execute packing(Decoder& decoder, uint32_t whole, size_t count) {
  const auto choose = []<class W, class P>() -> Execute {
    if constexpr (kPack)
      return pack<W, P>;
    else
      return unpack<W, P>;
  };
  if (whole == 8 && count == 2) return choose.template operator()<uint64_t, uint32_t>();
  if (whole == 8 && count == 4) return choose.template operator()<uint64_t, uint16_t>();
  if (whole == 8 && count == 8) return choose.template operator()<uint64_t, uint8_t>();
  if (whole == 4 && count == 2) return choose.template operator()<uint32_t, uint16_t>();
  if (whole == 4 && count == 4) return choose.template operator()<uint32_t, uint8_t>();
  if (whole == 2 && count == 2) return choose.template operator()<uint16_t, uint8_t>();
  decoder.unknown();
}

template <bool kPack>
void decode_packing(Decoder& decoder, uint32_t bytes) {
  const Operand& vector = decoder.operand(kPack ? 1 : 0);
  const size_t count = vector.elements.size();
  const Execute execute = packing<kPack>(decoder, bytes, count);
  const auto part = static_cast<uint32_t>(bytes / count);
  std::array<uint32_t, 9> registers{};
  for (size_t i = 0; i < count; ++i) {
    registers[i] = kPack ? decoder.wide_source(vector.elements[i], part)
                         : decoder.wide_destination(vector.elements[i], part, false);
  }
  registers[count] = kPack ? decoder.destination(0, bytes) : decoder.source(1, bytes);
  Instruction& instruction = decoder.emit(execute);
  std::copy(registers.begin(), registers.end(), instruction.operand.begin());
}

// Instructions so far: a clock that only moves forward.
template <class T>
void read_clock(Warp& warp, const Instruction& instruction, Mask mask) {
  const uint64_t now = ++warp.block->launch->clock;
  T* d = warp.lanes<T>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<T>(now); });
}

bool is_clock(std::string_view name) {
  return name == "%clock" || name == "%clock64" || name == "%clock_hi" || name == "%globaltimer" ||
         name == "%globaltimer_lo";
}

void decode_mov(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  if (type == "pred") {
    return emit_uniform(
        decoder,
        [](Warp& warp, const Instruction& i, Mask mask) {
          set_predicate(warp, i.operand[0], mask, warp.predicate(i.operand[1]));
        },
        kPredicate, 2);
  }
  const uint32_t bytes = type_bytes(type);
  if (decoder.operand(0).kind == Operand::Kind::kVector) return decode_packing<false>(decoder, bytes);
  if (decoder.operand(1).kind == Operand::Kind::kVector) return decode_packing<true>(decoder, bytes);
  if (is_clock(decoder.operand(1).name)) {
    const uint32_t d = decoder.destination(0, bytes);
    decoder.emit(bytes == 8 ? read_clock<uint64_t> : read_clock<uint32_t>, {d});
    return;
  }
  emit_uniform(decoder, for_bits(decoder, bytes, []<class T>() -> Execute { return copy_lanes<T>(); }), bytes, 2);
}

// Generic addresses are host addresses; those of global, const, local and param space are too.
template <class T, bool kToShared>
void convert_shared(Warp& warp, const Instruction& instruction, Mask mask) {
  const auto base = reinterpret_cast<uint64_t>(warp.block->shared);
  T* d = warp.lanes<T>(instruction.operand[0]);
  const T* a = warp.lanes<T>(instruction.operand[1]);
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<T>(kToShared ? a[lane] - base : a[lane] + base); });
}

void decode_cvta(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool to = modifiers.take("to");
  const std::string space = modifiers.take_any(
      {"global", "const", "local", "param", "param::entry", "shared", "shared::cta", "shared::cluster"});
  if (space.empty() || modifiers.take_type() != "u64") decoder.unknown();
  if (!space.starts_with("shared")) return emit_uniform(decoder, copy_lanes<uint64_t>(), 8, 2);
  emit_uniform(decoder, to ? convert_shared<uint64_t, true> : convert_shared<uint64_t, false>, 8, 2);
}

void test_space(Warp& warp, const Instruction& instruction, Mask mask) {
  const uint64_t* a = warp.lanes<uint64_t>(instruction.operand[1]);
  Mask result = 0;
  for_lanes(mask, [&](int lane) { result |= static_cast<Mask>(classify(warp, a[lane]) == instruction.space) << lane; });
  set_predicate(warp, instruction.operand[0], mask, result);
}

void decode_isspacep(Decoder& decoder) {
  static const std::map<std::string, Space> spaces = {{"global", Space::kGlobal},
                                                      {"local", Space::kLocal},
                                                      {"shared", Space::kShared},
                                                      {"shared::cta", Space::kShared},
                                                      {"shared::cluster", Space::kShared},
                                                      {"const", Space::kConst},
                                                      {"param", Space::kParam}};
  for (const auto& [name, space] : spaces) {
    if (!decoder.modifiers().take(name)) continue;
    const uint32_t p = decoder.destination(0, kPredicate), a = decoder.source(1, 8);
    decoder.emit(test_space, {p, a}).space = space;
    return;
  }
  decoder.unknown();
}

}  // namespace

void add_move_opcodes(OpcodeTable& table) {
  table["mov"] = decode_mov;
  table["cvta"] = decode_cvta;
  table["isspacep"] = decode_isspacep;
}

}  // namespace ptxsim
