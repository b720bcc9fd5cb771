// Bits: and, or, xor, not, cnot, lop3, shl, shr, shf, bfe, bfi, prmt, popc, clz, brev, bfind, bmsk, szext.
#include <algorithm>
#include <type_traits>

#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

struct And {
  template <class T>
  static T run(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T run(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T run(T a, T b) {
    return a ^ b;
  }
};

template <class Op>
void on_predicates(Warp& warp, const Instruction& instruction, Mask mask) {
  const Mask value = Op::run(warp.predicate(instruction.operand[1]), warp.predicate(instruction.operand[2]));
  set_predicate(warp, instruction.operand[0], mask, value);
}

template <class Op>
void decode_bitwise(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  if (type == "pred") return emit_uniform(decoder, on_predicates<Op>, kPredicate, 3);
  emit_uniform(decoder,
               for_bits(decoder, bytes,
                        []<class T>() -> Execute {
                          return map<[](T a, T b) { return static_cast<T>(Op::run(a, b)); }, T, T, T>;
                        }),
               bytes, 3);
}

void decode_not(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  if (type == "pred") {
    return emit_uniform(
        decoder,
        [](Warp& warp, const Instruction& i, Mask mask) {
          set_predicate(warp, i.operand[0], mask, ~warp.predicate(i.operand[1]));
        },
        kPredicate, 2);
  }
  emit_uniform(
      decoder,
      for_bits(decoder, bytes, []<class T>() -> Execute { return map<[](T a) { return static_cast<T>(~a); }, T, T>; }),
      bytes, 2);
}

void decode_cnot(Decoder& decoder) {
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  emit_uniform(decoder,
               for_bits(decoder, bytes,
                        []<class T>() -> Execute { return map<[](T a) { return static_cast<T>(a == 0); }, T, T>; }),
               bytes, 2);
}

// lop3 d, a, b, c, table: bit i of the table is the result for a, b, c = the bits of i.
void decode_lop3(Decoder& decoder) {
  if (decoder.modifiers().take_type() != "b32" || decoder.num_operands() != 5) decoder.unknown();
  const auto table = static_cast<uint32_t>(decoder.literal(decoder.operand(4)));
  const uint32_t d = decoder.destination(0, 4), a = decoder.source(1, 4), b = decoder.source(2, 4),
                 c = decoder.source(3, 4);
  const Execute execute = [](Warp& warp, const Instruction& instruction, Mask mask) {
    uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
    const uint32_t *a = warp.lanes<uint32_t>(instruction.operand[1]), *b = warp.lanes<uint32_t>(instruction.operand[2]),
                   *c = warp.lanes<uint32_t>(instruction.operand[3]);
    uint32_t term[8];
    for (uint32_t i = 0; i < 8; ++i) term[i] = instruction.mode >> i & 1 ? ~0u : 0u;
    for_lanes(mask, [&](int lane) {
      const uint32_t x = a[lane], y = b[lane], z = c[lane];
      d[lane] = (~x & ((~y & ((~z & term[0]) | (z & term[1]))) | (y & ((~z & term[2]) | (z & term[3]))))) |
                (x & ((~y & ((~z & term[4]) | (z & term[5]))) | (y & ((~z & term[6]) | (z & term[7])))));
    });
  };
  decoder.emit(execute, {d, a, b, c}).mode = table;
}

// Shifts by the width or more give zeros, or the sign.
template <class T>
T shift_left(T a, uint32_t n) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  return static_cast<T>(n >= kBits ? T{0}
                                   : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << (n & (kBits - 1))));
}

template <class T>
T shift_right(T a, uint32_t n) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const uint32_t most = std::is_signed_v<T> ? kBits - 1 : kBits;
  const uint32_t count = n < most ? n : most;
  if constexpr (std::is_signed_v<T>)
    return static_cast<T>(a >> count);
  else
    return static_cast<T>(count == kBits ? T{0} : static_cast<T>(a >> (count & (kBits - 1))));
}

template <bool kLeft>
void decode_shift(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  const Execute execute = for_integer(decoder, type, []<class T>() -> Execute {
    if constexpr (kLeft)
      return map<shift_left<T>, T, T, uint32_t>;
    else
      return map<shift_right<T>, T, T, uint32_t>;
  });
  const uint32_t d = decoder.destination(0, bytes), a = decoder.source(1, bytes);
  decoder.emit(execute, {d, a, decoder.source(2, 4)});
}

// shf: a window of 32 bits on the 64 bits b:a. clamp limits the count to 32, wrap takes it modulo 32.
template <bool kLeft, bool kClamp>
uint32_t funnel(uint32_t a, uint32_t b, uint32_t count) {
  const uint32_t n = kClamp ? std::min(count, 32u) : count & 31;
  const uint64_t both = uint64_t{b} << 32 | a;
  return static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n);
}

void decode_shf(Decoder& decoder) {
  const bool left = decoder.modifiers().take_any({"l", "r"}) == "l",
             clamp = decoder.modifiers().take_any({"clamp", "wrap"}) == "clamp";
  if (decoder.modifiers().take_type() != "b32") decoder.unknown();
  using U = uint32_t;
  const Execute execute = left ? (clamp ? map<funnel<true, true>, U, U, U, U> : map<funnel<true, false>, U, U, U, U>)
                               : (clamp ? map<funnel<false, true>, U, U, U, U> : map<funnel<false, false>, U, U, U, U>);
  emit_uniform(decoder, execute, 4, 4);
}

template <class T>
T bit_field(T a, uint32_t position_register, uint32_t length_register) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t kBits = 8 * sizeof(T);
  const uint32_t position = position_register & 255, length = length_register & 255;
  const uint32_t top = std::min(position + length, kBits);
  const bool sign =
      std::is_signed_v<T> && length != 0 && (static_cast<U>(a) >> (top == 0 ? 0 : std::min(top, kBits) - 1) & 1) != 0;
  const U field = position >= kBits ? U{0} : static_cast<U>(static_cast<U>(a) >> position);
  const U mask = length >= kBits ? ~U{0} : (U{1} << length) - 1;
  U result = field & mask;
  // Above what the field covers, and above the top of a, stands the sign.
  const uint32_t covered = position >= kBits ? 0 : std::min(length, kBits - position);
  if (sign && covered < kBits) result |= ~U{0} << covered;
  return static_cast<T>(result);
}

template <class T>
T insert_field(T a, T b, uint32_t position_register, uint32_t length_register) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const uint32_t position = position_register & 255, length = length_register & 255;
  if (position >= kBits) return b;
  const T mask = length >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  return static_cast<T>((b & ~(mask << position)) | ((a & mask) << position));
}

void decode_bfe(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  if (bytes < 4) decoder.unknown();
  const Execute execute =
      for_integer(decoder, type, []<class T>() -> Execute { return map<bit_field<T>, T, T, uint32_t, uint32_t>; });
  const uint32_t d = decoder.destination(0, bytes), a = decoder.source(1, bytes), position = decoder.source(2, 4);
  decoder.emit(execute, {d, a, position, decoder.source(3, 4)});
}

void decode_bfi(Decoder& decoder) {
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  if (bytes != 4 && bytes != 8) decoder.unknown();
  const Execute execute = bytes == 4 ? map<insert_field<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>
                                     : map<insert_field<uint64_t>, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>;
  const uint32_t d = decoder.destination(0, bytes), a = decoder.source(1, bytes), b = decoder.source(2, bytes);
  const uint32_t position = decoder.source(3, 4);
  decoder.emit(execute, {d, a, b, position, decoder.source(4, 4)});
}

// The selector of byte `i` that a named mode of prmt stands for; 4 bits as in the default mode.
uint32_t named_selector(uint32_t mode, uint32_t c, uint32_t i) {
  const uint32_t n = c & 3;
  switch (mode) {
    case 1:
      return n + i;  // f4e: forward four bytes
    case 2:
      return (8 + n - i) & 7;  // b4e: backward
    case 3:
      return n;  // rc8: replicate
    case 4:
      return std::max(n, i);  // ecl: edge clamp left
    case 5:
      return std::min(n, i);  // ecr: edge clamp right
    default:
      return 2 * (n & 1) + (i & 1);  // rc16
  }
}

void permute_bytes(Warp& warp, const Instruction& instruction, Mask mask) {
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  const uint32_t *a = warp.lanes<uint32_t>(instruction.operand[1]), *b = warp.lanes<uint32_t>(instruction.operand[2]),
                 *c = warp.lanes<uint32_t>(instruction.operand[3]);
  for_lanes(mask, [&](int lane) {
    const uint64_t both = uint64_t{b[lane]} << 32 | a[lane];
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t selector =
          instruction.mode == 0 ? c[lane] >> (4 * i) & 15 : named_selector(instruction.mode, c[lane], i);
      auto byte = static_cast<uint32_t>(both >> (8 * (selector & 7)) & 255);
      if ((selector & 8) != 0 && instruction.mode == 0) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * i);
    }
    d[lane] = result;
  });
}

void decode_prmt(Decoder& decoder) {
  if (decoder.modifiers().take_type() != "b32") decoder.unknown();
  const std::string name = decoder.modifiers().take_any({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  emit_uniform(decoder, permute_bytes, 4, 4);
  decoder.last().mode = name.empty()    ? 0
                        : name == "f4e" ? 1
                        : name == "b4e" ? 2
                        : name == "rc8" ? 3
                        : name == "ecl" ? 4
                        : name == "ecr" ? 5
                                        : 6;
}

template <class T>
T reversed(T x) {
  T result = 0;
  for (size_t i = 0; i < 8 * sizeof(T); ++i) result |= (x >> i & 1) << (8 * sizeof(T) - 1 - i);
  return result;
}

template <auto F32, auto F64>
void decode_count(Decoder& decoder) {
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  if (bytes != 4 && bytes != 8) decoder.unknown();
  const uint32_t d = decoder.destination(0, 4), a = decoder.source(1, bytes);
  decoder.emit(bytes == 4 ? Execute(map<F32, uint32_t, uint32_t>) : map<F64, uint32_t, uint64_t>, {d, a});
}

void decode_brev(Decoder& decoder) {
  const uint32_t bytes = type_bytes(decoder.modifiers().take_type());
  if (bytes != 4 && bytes != 8) decoder.unknown();
  emit_uniform(
      decoder,
      bytes == 4 ? Execute(map<reversed<uint32_t>, uint32_t, uint32_t>) : map<reversed<uint64_t>, uint64_t, uint64_t>,
      bytes, 2);
}

// Position of the highest bit that differs from the sign; shiftamt: how far it is from the top. All ones if none.
template <class T, bool kShiftAmount>
uint32_t find_bit(T x) {
  using U = std::make_unsigned_t<T>;
  const U bits = std::is_signed_v<T> && x < 0 ? static_cast<U>(~static_cast<U>(x)) : static_cast<U>(x);
  if (bits == 0) return ~0u;
  const auto zeros = static_cast<uint32_t>(std::countl_zero(bits));
  return kShiftAmount ? zeros : static_cast<uint32_t>(8 * sizeof(T)) - 1 - zeros;
}

void decode_bfind(Decoder& decoder) {
  const bool shift = decoder.modifiers().take("shiftamt");
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  const Execute execute = for_integer(decoder, type, [shift]<class T>() -> Execute {
    return shift ? map<find_bit<T, true>, uint32_t, T> : map<find_bit<T, false>, uint32_t, T>;
  });
  const uint32_t d = decoder.destination(0, 4);
  decoder.emit(execute, {d, decoder.source(1, bytes)});
}

// bmsk d, a, b: b ones from bit a on.
template <bool kClamp>
uint32_t bit_mask(uint32_t a, uint32_t b) {
  const uint32_t start = kClamp ? std::min(a, 32u) : a & 31, width = kClamp ? std::min(b, 32u) : b & 31;
  return static_cast<uint32_t>(((uint64_t{1} << width) - 1) << start);
}

void decode_bmsk(Decoder& decoder) {
  const bool clamp = decoder.modifiers().take_any({"clamp", "wrap"}) == "clamp";
  if (decoder.modifiers().take_type() != "b32") decoder.unknown();
  using U = uint32_t;
  emit_uniform(decoder, clamp ? map<bit_mask<true>, U, U, U> : map<bit_mask<false>, U, U, U>, 4, 3);
}

// szext d, a, b: a cut to b bits and extended.
template <class T, bool kClamp>
T extended(T a, uint32_t b) {
  const uint32_t width = kClamp ? std::min(b, 32u) : b & 31;
  if (width == 0) return 0;
  return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << (32 - width)) >> (32 - width));
}

void decode_szext(Decoder& decoder) {
  const bool clamp = decoder.modifiers().take_any({"clamp", "wrap"}) == "clamp";
  const std::string type = decoder.modifiers().take_type();
  if (type != "s32" && type != "u32") decoder.unknown();
  using S = int32_t;
  using U = uint32_t;
  const Execute execute = type == "s32" ? (clamp ? map<extended<S, true>, S, S, U> : map<extended<S, false>, S, S, U>)
                                        : (clamp ? map<extended<U, true>, U, U, U> : map<extended<U, false>, U, U, U>);
  emit_uniform(decoder, execute, 4, 3);
}

}  // namespace

void add_logic_opcodes(OpcodeTable& table) {
  table["and"] = decode_bitwise<And>;
  table["or"] = decode_bitwise<Or>;
  table["xor"] = decode_bitwise<Xor>;
  table["not"] = decode_not;
  table["cnot"] = decode_cnot;
  table["lop3"] = decode_lop3;
  table["shl"] = decode_shift<true>;
  table["shr"] = decode_shift<false>;
  table["shf"] = decode_shf;
  table["bfe"] = decode_bfe;
  table["bfi"] = decode_bfi;
  table["prmt"] = decode_prmt;
  table["popc"] = decode_count<[](uint32_t x) { return static_cast<uint32_t>(std::popcount(x)); },
                               [](uint64_t x) { return static_cast<uint32_t>(std::popcount(x)); }>;
  table["clz"] = decode_count<[](uint32_t x) { return static_cast<uint32_t>(std::countl_zero(x)); },
                              [](uint64_t x) { return static_cast<uint32_t>(std::countl_zero(x)); }>;
  table["brev"] = decode_brev;
  table["bfind"] = decode_bfind;
  table["bmsk"] = decode_bmsk;
  table["szext"] = decode_szext;
}

}  // namespace ptxsim
