// Integer arithmetic: add, sub, mul, mad, div, rem, min, max, neg, abs, carries, dot products.
#include <algorithm>
#include <type_traits>

#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

// The type of twice the width.
template <class T>
struct Twice;
template <>
struct Twice<int16_t> {
  using type = int32_t;
};
template <>
struct Twice<uint16_t> {
  using type = uint32_t;
};
template <>
struct Twice<int32_t> {
  using type = int64_t;
};
template <>
struct Twice<uint32_t> {
  using type = uint64_t;
};
template <>
struct Twice<int64_t> {
  using type = __int128;
};
template <>
struct Twice<uint64_t> {
  using type = unsigned __int128;
};
template <class T>
using Wide = typename Twice<T>::type;

// Arithmetic wraps around. 16-bit operands are widened first: their product would overflow an int.
template <class T>
T wrap_multiply(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <class T>
T high_product(T a, T b) {
  return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) >> (8 * sizeof(T)));
}

template <class T>
Wide<T> wide_product(T a, T b) {
  return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
}

int32_t saturate_to_s32(int64_t x) { return static_cast<int32_t>(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); }

// What a GPU returns for a division by zero is all ones. INT_MIN / -1 wraps around.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if (std::is_signed_v<T> && b == static_cast<T>(-1))
    return static_cast<T>(Unsigned<T>(0) - static_cast<Unsigned<T>>(a));
  return static_cast<T>(a / b);
}

template <class T>
T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

void decode_add(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  if (decoder.modifiers().has("cc")) return decode_carry(decoder);
  const bool saturated = decoder.modifiers().take("sat");
  const std::string type = decoder.modifiers().take_type();
  if (saturated && type != "s32") decoder.unknown();
  const Execute execute =
      saturated
          ? Execute(
                map<[](int32_t a, int32_t b) { return saturate_to_s32(int64_t{a} + b); }, int32_t, int32_t, int32_t>)
          : for_integer(decoder, type, []<class T>() -> Execute {
              return map<[](T a, T b) {
                return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
              },
                         T, T, T>;
            });
  emit_uniform(decoder, execute, type_bytes(type), 3);
}

void decode_sub(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  if (decoder.modifiers().has("cc")) return decode_carry(decoder);
  const bool saturated = decoder.modifiers().take("sat");
  const std::string type = decoder.modifiers().take_type();
  if (saturated && type != "s32") decoder.unknown();
  const Execute execute =
      saturated
          ? Execute(
                map<[](int32_t a, int32_t b) { return saturate_to_s32(int64_t{a} - b); }, int32_t, int32_t, int32_t>)
          : for_integer(decoder, type, []<class T>() -> Execute {
              return map<[](T a, T b) {
                return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
              },
                         T, T, T>;
            });
  emit_uniform(decoder, execute, type_bytes(type), 3);
}

// mul.wide and mad.wide exist for 16 and 32 bits.
template <class Make>
Execute for_narrow_integer(Decoder& decoder, const std::string& type, Make make) {
  if (type == "s16") return make.template operator()<int16_t>();
  if (type == "u16") return make.template operator()<uint16_t>();
  if (type == "s32") return make.template operator()<int32_t>();
  if (type == "u32") return make.template operator()<uint32_t>();
  decoder.unknown();
}

void decode_mul(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  const std::string part = decoder.modifiers().take_any({"lo", "hi", "wide"});
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  Execute execute = nullptr;
  if (part == "wide") {
    execute =
        for_narrow_integer(decoder, type, []<class T>() -> Execute { return map<wide_product<T>, Wide<T>, T, T>; });
  } else if (part == "hi") {
    execute = for_integer(decoder, type, []<class T>() -> Execute { return map<high_product<T>, T, T, T>; });
  } else if (part == "lo") {
    execute = for_integer(decoder, type, []<class T>() -> Execute { return map<wrap_multiply<T>, T, T, T>; });
  } else {
    decoder.unknown();
  }
  const uint32_t d = decoder.destination(0, part == "wide" ? 2 * bytes : bytes);
  const uint32_t a = decoder.source(1, bytes), b = decoder.source(2, bytes);
  decoder.emit(execute, {d, a, b});
}

void decode_mad(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  if (decoder.modifiers().has("cc")) return decode_carry(decoder);
  const std::string part = decoder.modifiers().take_any({"lo", "hi", "wide"});
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type), sum_bytes = part == "wide" ? 2 * bytes : bytes;
  Execute execute = nullptr;
  if (part == "wide") {
    execute = for_narrow_integer(decoder, type, []<class T>() -> Execute {
      using W = Wide<T>;
      return map<[](T a, T b, W c) {
        return static_cast<W>(static_cast<uint64_t>(wide_product(a, b)) + static_cast<uint64_t>(c));
      },
                 W, T, T, W>;
    });
  } else if (part == "hi") {
    execute = for_integer(decoder, type, []<class T>() -> Execute {
      return map<[](T a, T b, T c) {
        return static_cast<T>(static_cast<Unsigned<T>>(high_product(a, b)) + static_cast<Unsigned<T>>(c));
      },
                 T, T, T, T>;
    });
  } else if (part == "lo") {
    execute = for_integer(decoder, type, []<class T>() -> Execute {
      return map<[](T a, T b, T c) {
        return static_cast<T>(static_cast<Unsigned<T>>(wrap_multiply(a, b)) + static_cast<Unsigned<T>>(c));
      },
                 T, T, T, T>;
    });
  } else {
    decoder.unknown();
  }
  const uint32_t d = decoder.destination(0, sum_bytes);
  const uint32_t a = decoder.source(1, bytes), b = decoder.source(2, bytes), c = decoder.source(3, sum_bytes);
  decoder.emit(execute, {d, a, b, c});
}

void decode_div(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  const std::string type = decoder.modifiers().take_type();
  emit_uniform(decoder, for_integer(decoder, type, []<class T>() -> Execute { return map<quotient<T>, T, T, T>; }),
               type_bytes(type), 3);
}

void decode_rem(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  emit_uniform(decoder, for_integer(decoder, type, []<class T>() -> Execute { return map<remainder<T>, T, T, T>; }),
               type_bytes(type), 3);
}

template <bool kMaximum>
void decode_extreme(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  const bool relu = decoder.modifiers().take("relu");
  const std::string type = decoder.modifiers().take_type();
  if (relu) decoder.unknown();
  const Execute execute = for_integer(decoder, type, []<class T>() -> Execute {
    return map<[](T a, T b) { return kMaximum == (a > b) ? a : b; }, T, T, T>;
  });
  emit_uniform(decoder, execute, type_bytes(type), 3);
}

void decode_neg(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  const std::string type = decoder.modifiers().take_type();
  const Execute execute = for_integer(decoder, type, []<class T>() -> Execute {
    return map<[](T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); }, T, T>;
  });
  emit_uniform(decoder, execute, type_bytes(type), 2);
}

void decode_abs(Decoder& decoder) {
  if (has_floating_type(decoder)) return decode_floating(decoder);
  const std::string type = decoder.modifiers().take_type();
  const Execute execute = for_integer(decoder, type, []<class T>() -> Execute {
    return map<[](T a) { return a < 0 ? static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)) : a; }, T, T>;
  });
  emit_uniform(decoder, execute, type_bytes(type), 2);
}

void decode_sad(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  const Execute execute = for_integer(decoder, type, []<class T>() -> Execute {
    return map<[](T a, T b, T c) {
      const auto difference =
          static_cast<Unsigned<T>>(a < b ? static_cast<Unsigned<T>>(b) - static_cast<Unsigned<T>>(a)
                                         : static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
      return static_cast<T>(static_cast<Unsigned<T>>(c) + difference);
    },
               T, T, T, T>;
  });
  emit_uniform(decoder, execute, type_bytes(type), 4);
}

// The low or high 32 bits of the product of the low 24 bits.
template <class T>
int64_t product24(T a, T b) {
  const auto low = [](T x) {
    return std::is_signed_v<T> ? int64_t{static_cast<int32_t>(static_cast<uint32_t>(x) << 8) >> 8}
                               : int64_t{x & 0xffffff};
  };
  return low(a) * low(b);
}

template <bool kAdd>
void decode_mul24(Decoder& decoder) {
  const bool high = decoder.modifiers().take_any({"hi", "lo"}) == "hi";
  const std::string type = decoder.modifiers().take_type();
  if (type != "s32" && type != "u32") decoder.unknown();
  const auto make = [high]<class T>() -> Execute {
    if constexpr (kAdd) {
      return high ? Execute(map<[](T a, T b, T c) { return static_cast<T>((product24(a, b) >> 16) + c); }, T, T, T, T>)
                  : Execute(map<[](T a, T b, T c) { return static_cast<T>(product24(a, b) + c); }, T, T, T, T>);
    } else {
      return high ? Execute(map<[](T a, T b) { return static_cast<T>(product24(a, b) >> 16); }, T, T, T>)
                  : Execute(map<[](T a, T b) { return static_cast<T>(product24(a, b)); }, T, T, T>);
    }
  };
  const Execute execute = type == "s32" ? make.template operator()<int32_t>() : make.template operator()<uint32_t>();
  emit_uniform(decoder, execute, 4, kAdd ? 4 : 3);
}

// c + sum of the products of four bytes; A and B are the types of the bytes.
template <class A, class B>
uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; ++i) c += static_cast<uint32_t>(static_cast<A>(a >> (8 * i)) * static_cast<B>(b >> (8 * i)));
  return c;
}

// c + the products of two 16-bit halves of a with the low or high two bytes of b.
template <class A, class B, bool kHigh>
uint32_t dot2(uint32_t a, uint32_t b, uint32_t c) {
  using Wide16 = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
  for (int i = 0; i < 2; ++i) {
    c += static_cast<uint32_t>(static_cast<Wide16>(a >> (16 * i)) * static_cast<B>(b >> (8 * i + (kHigh ? 16 : 0))));
  }
  return c;
}

template <class A, class B>
Execute dot_product(int kind) {
  using U = uint32_t;
  if (kind == 0) return map<dot4<A, B>, U, U, U, U>;
  return kind == 1 ? map<dot2<A, B, false>, U, U, U, U> : map<dot2<A, B, true>, U, U, U, U>;
}

void decode_dot(Decoder& decoder) {
  const bool two = decoder.modifiers().base() == "dp2a";
  const int kind = !two ? 0 : decoder.modifiers().take_any({"hi", "lo"}) == "hi" ? 2 : 1;
  const bool a_signed = decoder.modifiers().take_type() == "s32", b_signed = decoder.modifiers().take_type() == "s32";
  const Execute execute = a_signed
                              ? (b_signed ? dot_product<int8_t, int8_t>(kind) : dot_product<int8_t, uint8_t>(kind))
                              : (b_signed ? dot_product<uint8_t, int8_t>(kind) : dot_product<uint8_t, uint8_t>(kind));
  emit_uniform(decoder, execute, 4, 4);
}

}  // namespace

void emit_uniform(Decoder& decoder, Execute execute, uint32_t bytes, size_t num_operands) {
  uint32_t registers[5] = {decoder.destination(0, bytes)};
  for (size_t i = 1; i < num_operands; ++i) registers[i] = decoder.source(i, bytes);
  decoder.emit(execute, {registers[0], registers[1], registers[2], registers[3], registers[4]});
}

void add_integer_opcodes(OpcodeTable& table) {
  table["add"] = decode_add;
  table["sub"] = decode_sub;
  table["mul"] = decode_mul;
  table["mad"] = decode_mad;
  table["mul24"] = decode_mul24<false>;
  table["mad24"] = decode_mul24<true>;
  table["div"] = decode_div;
  table["rem"] = decode_rem;
  table["min"] = decode_extreme<false>;
  table["max"] = decode_extreme<true>;
  table["neg"] = decode_neg;
  table["abs"] = decode_abs;
  table["sad"] = decode_sad;
  table["dp4a"] = table["dp2a"] = decode_dot;
}

}  // namespace ptxsim
