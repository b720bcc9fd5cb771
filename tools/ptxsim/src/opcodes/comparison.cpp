// setp, set, selp, slct.
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

enum class Comparison : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan,
  kUnknown
};

Comparison comparison_of(Modifiers& modifiers) {
  static const std::map<std::string, Comparison> names = {
      {"eq", Comparison::kEq},   {"ne", Comparison::kNe},   {"lt", Comparison::kLt},   {"le", Comparison::kLe},
      {"gt", Comparison::kGt},   {"ge", Comparison::kGe},   {"lo", Comparison::kLt},   {"ls", Comparison::kLe},
      {"hi", Comparison::kGt},   {"hs", Comparison::kGe},   {"equ", Comparison::kEqu}, {"neu", Comparison::kNeu},
      {"ltu", Comparison::kLtu}, {"leu", Comparison::kLeu}, {"gtu", Comparison::kGtu}, {"geu", Comparison::kGeu},
      {"num", Comparison::kNum}, {"nan", Comparison::kNan}};
  for (const auto& [name, comparison] : names) {
    if (modifiers.take(name)) return comparison;
  }
  return Comparison::kUnknown;
}

template <class T>
T comparable(T x) {
  return x;
}
inline float comparable(Half x) { return to_float(x); }
inline float comparable(BFloat16 x) { return to_float(x); }

template <Comparison kComparison, bool kFlush, class T>
bool holds(T x, T y) {
  auto a = comparable(x), b = comparable(y);
  if constexpr (std::is_same_v<T, float>) {
    a = flush<kFlush>(a);
    b = flush<kFlush>(b);
  }
  switch (kComparison) {
    case Comparison::kEq:
      return a == b;
    case Comparison::kNe:
      return a < b || a > b;
    case Comparison::kLt:
      return a < b;
    case Comparison::kLe:
      return a <= b;
    case Comparison::kGt:
      return a > b;
    case Comparison::kGe:
      return a >= b;
    case Comparison::kEqu:
      return !(a < b || a > b);
    case Comparison::kNeu:
      return !(a == b);
    case Comparison::kLtu:
      return !(a >= b);
    case Comparison::kLeu:
      return !(a > b);
    case Comparison::kGtu:
      return !(a <= b);
    case Comparison::kGeu:
      return !(a < b);
    case Comparison::kNum:
      return a == a && b == b;
    case Comparison::kNan:
      return a != a || b != b;
    case Comparison::kUnknown:
      return false;
  }
}

enum Combine : uint32_t { kAlone, kAnd, kOr, kXor };

Mask combined(Warp& warp, const Instruction& instruction, Mask value) {
  const Mask other = instruction.mode == kAlone ? 0 : warp.predicate(instruction.operand[4]);
  switch (instruction.mode) {
    case kAnd:
      return value & other;
    case kOr:
      return value | other;
    case kXor:
      return value ^ other;
    default:
      return value;
  }
}

// Operands: p, q, a, b, c.
template <Comparison kComparison, bool kFlush, class T>
void set_predicates(Warp& warp, const Instruction& instruction, Mask mask) {
  const T *a = warp.lanes<T>(instruction.operand[2]), *b = warp.lanes<T>(instruction.operand[3]);
  const Mask value = compare<holds<kComparison, kFlush, T>>(a, b, mask);
  const Mask p = combined(warp, instruction, value), q = combined(warp, instruction, ~value);
  set_predicate(warp, instruction.operand[0], mask, p);
  if (instruction.operand[1] != kNone) set_predicate(warp, instruction.operand[1], mask, q);
}

// setp.f16x2: p is of the low halves, q of the high ones.
template <Comparison kComparison, bool kFlush, class T>
void set_predicates_of_halves(Warp& warp, const Instruction& instruction, Mask mask) {
  const uint32_t *a = warp.lanes<uint32_t>(instruction.operand[2]), *b = warp.lanes<uint32_t>(instruction.operand[3]);
  for (int half = 0; half < 2; ++half) {
    Mask value = 0;
    for_lanes(mask, [&](int lane) {
      const T x{static_cast<uint16_t>(a[lane] >> (16 * half))}, y{static_cast<uint16_t>(b[lane] >> (16 * half))};
      value |= static_cast<Mask>(holds<kComparison, kFlush, T>(x, y)) << lane;
    });
    set_predicate(warp, instruction.operand[static_cast<size_t>(half)], mask, combined(warp, instruction, value));
  }
}

// The values that set writes for true, by destination type; false is 0.
struct SetResult {
  uint64_t value;
  uint32_t bytes;
};

SetResult set_result(Decoder& decoder, const std::string& type) {
  if (type == "u32" || type == "s32") return {0xffffffffu, 4};
  if (type == "u16" || type == "s16") return {0xffffu, 2};
  if (type == "f32") return {std::bit_cast<uint32_t>(1.0f), 4};
  if (type == "f16") return {0x3c00u, 2};
  if (type == "bf16") return {0x3f80u, 2};
  if (type == "f16x2") return {0x3c003c00u, 4};
  if (type == "bf16x2") return {0x3f803f80u, 4};
  decoder.unknown();
}

// Operands: d, its value for true, a, b, c.
template <Comparison kComparison, bool kFlush, class T>
void set_value(Warp& warp, const Instruction& instruction, Mask mask) {
  const T *a = warp.lanes<T>(instruction.operand[2]), *b = warp.lanes<T>(instruction.operand[3]);
  const Mask value = combined(warp, instruction, compare<holds<kComparison, kFlush, T>>(a, b, mask));
  const auto write = [&]<class D>(D*) {
    D* d = warp.lanes<D>(instruction.operand[0]);
    const D* one = warp.lanes<D>(instruction.operand[1]);
    for_lanes(mask, [&](int lane) { d[lane] = value >> lane & 1 ? one[lane] : D{0}; });
  };
  if (instruction.mode2 == 2)
    write(static_cast<uint16_t*>(nullptr));
  else
    write(static_cast<uint32_t*>(nullptr));
}

template <Comparison kComparison, bool kFlush, class T>
void set_halves(Warp& warp, const Instruction& instruction, Mask mask) {
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  const uint32_t* one = warp.lanes<uint32_t>(instruction.operand[1]);
  const uint32_t *a = warp.lanes<uint32_t>(instruction.operand[2]), *b = warp.lanes<uint32_t>(instruction.operand[3]);
  for_lanes(mask, [&](int lane) {
    uint32_t result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
      const T x{static_cast<uint16_t>(a[lane] >> shift)}, y{static_cast<uint16_t>(b[lane] >> shift)};
      if (holds<kComparison, kFlush, T>(x, y)) result |= one[lane] & (0xffffu << shift);
    }
    d[lane] = result;
  });
}

// The instance of a function template of (comparison, flush, type), in two steps: type, then comparison.
template <class Make, class T, bool kFlush, size_t... kIndex>
Execute by_comparison(Comparison comparison, Make make, std::index_sequence<kIndex...>) {
  Execute execute = nullptr;
  ((comparison == static_cast<Comparison>(kIndex)
        ? void(execute = make.template operator()<static_cast<Comparison>(kIndex), kFlush, T>())
        : void()),
   ...);
  return execute;
}

template <class T, bool kFlush = false, class Make>
Execute by_comparison(Comparison comparison, Make make) {
  return by_comparison<Make, T, kFlush>(comparison, make,
                                        std::make_index_sequence<static_cast<size_t>(Comparison::kUnknown)>());
}

template <class Make>
Execute comparison_instance(Decoder& decoder, Comparison comparison, bool ftz, const std::string& type, Make make) {
  if (type == "f64") return by_comparison<double>(comparison, make);
  if (type == "f32") return ftz ? by_comparison<float, true>(comparison, make) : by_comparison<float>(comparison, make);
  if (type == "f16") return by_comparison<Half>(comparison, make);
  if (type == "bf16") return by_comparison<BFloat16>(comparison, make);
  return for_integer(decoder, type, [&]<class T>() -> Execute { return by_comparison<T>(comparison, make); });
}

template <class Make>
Execute halves_instance(Comparison comparison, const std::string& type, Make make) {
  return type == "f16x2" ? by_comparison<Half>(comparison, make) : by_comparison<BFloat16>(comparison, make);
}

struct ComparisonOptions {
  Comparison comparison;
  uint32_t combine;
  bool ftz;
};

ComparisonOptions take_comparison(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const Comparison comparison = comparison_of(modifiers);
  if (comparison == Comparison::kUnknown) decoder.unknown();
  const std::string combine = modifiers.take_any({"and", "or", "xor"});
  const uint32_t mode = combine == "and" ? kAnd : combine == "or" ? kOr : combine == "xor" ? kXor : kAlone;
  return {comparison, mode, modifiers.take("ftz")};
}

bool is_packed(const std::string& type) { return type == "f16x2" || type == "bf16x2"; }

void decode_setp(Decoder& decoder) {
  const ComparisonOptions options = take_comparison(decoder);
  const std::string type = decoder.modifiers().take_type();
  const bool two = decoder.num_operands() == (options.combine == kAlone ? 4u : 5u);
  Execute execute = nullptr;
  if (is_packed(type)) {
    if (!two) decoder.fail("two destinations are expected");
    execute = halves_instance(options.comparison, type, []<Comparison c, bool f, class T>() -> Execute {
      return set_predicates_of_halves<c, f, T>;
    });
  } else {
    execute = comparison_instance(decoder, options.comparison, options.ftz, type,
                                  []<Comparison c, bool f, class T>() -> Execute { return set_predicates<c, f, T>; });
  }
  const uint32_t bytes = type_bytes(type), p = decoder.destination(0, kPredicate),
                 q = two ? decoder.destination(1, kPredicate) : kNone;
  const size_t first = two ? 2 : 1;
  const uint32_t a = decoder.source(first, bytes), b = decoder.source(first + 1, bytes);
  const uint32_t c = options.combine == kAlone ? kNone : decoder.source(first + 2, kPredicate);
  decoder.emit(execute, {p, q, a, b, c}).mode = options.combine;
}

void decode_set(Decoder& decoder) {
  const ComparisonOptions options = take_comparison(decoder);
  const std::string to = decoder.modifiers().take_type(), type = decoder.modifiers().take_type();
  const SetResult result = set_result(decoder, to);
  const Execute execute =
      is_packed(type)
          ? halves_instance(options.comparison, type,
                            []<Comparison c, bool f, class T>() -> Execute { return set_halves<c, f, T>; })
          : comparison_instance(decoder, options.comparison, options.ftz, type,
                                []<Comparison c, bool f, class T>() -> Execute { return set_value<c, f, T>; });
  const uint32_t bytes = type_bytes(type), d = decoder.destination(0, result.bytes),
                 one = decoder.constant(result.value, result.bytes);
  const uint32_t a = decoder.source(1, bytes), b = decoder.source(2, bytes);
  const uint32_t c = options.combine == kAlone ? kNone : decoder.source(3, kPredicate);
  Instruction& instruction = decoder.emit(execute, {d, one, a, b, c});
  instruction.mode = options.combine;
  instruction.mode2 = result.bytes;
}

template <class T>
void select(Warp& warp, const Instruction& instruction, Mask mask) {
  T* d = warp.lanes<T>(instruction.operand[0]);
  const T *a = warp.lanes<T>(instruction.operand[1]), *b = warp.lanes<T>(instruction.operand[2]);
  const Mask choice = warp.predicate(instruction.operand[3]);
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpSize; ++lane) d[lane] = choice >> lane & 1 ? a[lane] : b[lane];
  } else {
    for_lanes(mask, [&](int lane) { d[lane] = choice >> lane & 1 ? a[lane] : b[lane]; });
  }
}

void decode_selp(Decoder& decoder) {
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  const Execute execute = for_bits(decoder, bytes, []<class T>() -> Execute { return select<T>; });
  const uint32_t d = decoder.destination(0, bytes), a = decoder.source(1, bytes), b = decoder.source(2, bytes);
  decoder.emit(execute, {d, a, b, decoder.source(3, kPredicate)});
}

// slct d, a, b, c: a where c >= 0, else b.
void decode_slct(Decoder& decoder) {
  const bool ftz = decoder.modifiers().take("ftz");
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  const bool integer = decoder.modifiers().take_type() == "s32";
  const Execute execute = for_bits(decoder, bytes, [integer, ftz]<class T>() -> Execute {
    if (integer) return map<[](T a, T b, int32_t c) { return c >= 0 ? a : b; }, T, T, T, int32_t>;
    return ftz ? map<[](T a, T b, float c) { return flush<true>(c) >= 0 ? a : b; }, T, T, T, float>
               : map<[](T a, T b, float c) { return c >= 0 ? a : b; }, T, T, T, float>;
  });
  const uint32_t d = decoder.destination(0, bytes), a = decoder.source(1, bytes), b = decoder.source(2, bytes);
  decoder.emit(execute, {d, a, b, decoder.source(3, 4)});
}

}  // namespace

void add_comparison_opcodes(OpcodeTable& table) {
  table["setp"] = decode_setp;
  table["set"] = decode_set;
  table["selp"] = decode_selp;
  table["slct"] = decode_slct;
}

}  // namespace ptxsim
