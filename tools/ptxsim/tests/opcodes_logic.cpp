// Bit operations: shifts by the width and more, fields that reach past the top, selectors.
#include <algorithm>

#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

using W = uint32_t;
using D = uint64_t;

template <class T>
void bitwise() {
  const std::string type = bits_type(sizeof(T));
  check_operation<T, T, T>("and" + type, [](T a, T b) { return static_cast<T>(a & b); });
  check_operation<T, T, T>("or" + type, [](T a, T b) { return static_cast<T>(a | b); });
  check_operation<T, T, T>("xor" + type, [](T a, T b) { return static_cast<T>(a ^ b); });
  check_operation<T, T>("not" + type, [](T a) { return static_cast<T>(~a); });
  check_operation<T, T>("cnot" + type, [](T a) { return static_cast<T>(a == 0); });
  check_operation<T, T, W>("shl" + type,
                           [](T a, W n) { return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<D>(a) << n); });
}

template <class T>
void right_shift(const std::string& type) {
  check_operation<T, T, W>("shr." + type,
                           [](T a, W n) { return static_cast<T>(n >= 8 * sizeof(T) ? (a < 0 ? -1 : 0) : a >> n); });
}

PTX_TEST(logic_bitwise_and_shifts) {
  bitwise<uint16_t>();
  bitwise<uint32_t>();
  bitwise<uint64_t>();
  right_shift<int16_t>("s16");
  right_shift<int32_t>("s32");
  right_shift<int64_t>("s64");
  right_shift<uint16_t>("u16");
  right_shift<uint32_t>("b32");
  right_shift<uint64_t>("u64");
}

PTX_TEST(logic_funnel_shifts) {
  check_operation<W, W, W, W>("shf.l.wrap.b32",
                              [](W a, W b, W c) { return static_cast<W>(((D{b} << 32 | a) << (c & 31)) >> 32); });
  check_operation<W, W, W, W>("shf.r.wrap.b32",
                              [](W a, W b, W c) { return static_cast<W>((D{b} << 32 | a) >> (c & 31)); });
  check_operation<W, W, W, W>(
      "shf.l.clamp.b32", [](W a, W b, W c) { return c >= 32 ? a : static_cast<W>(((D{b} << 32 | a) << c) >> 32); });
  check_operation<W, W, W, W>("shf.r.clamp.b32",
                              [](W a, W b, W c) { return c >= 32 ? b : static_cast<W>((D{b} << 32 | a) >> c); });
}

// The loop of the PTX ISA's description.
template <class T>
T field(T a, W b, W c) {
  const int msb = static_cast<int>(8 * sizeof(T)) - 1, position = static_cast<int>(b & 255),
            length = static_cast<int>(c & 255);
  bool sign = false;
  if (std::is_signed_v<T> && length > 0) sign = (a >> std::min(position + length - 1, msb) & 1) != 0;
  std::make_unsigned_t<T> d = 0;
  for (int i = 0; i <= msb; ++i) {
    const bool bit = i < length && position + i <= msb ? (a >> (position + i) & 1) != 0 : sign;
    d |= static_cast<std::make_unsigned_t<T>>(bit) << i;
  }
  return static_cast<T>(d);
}

template <class T>
T inserted(T a, T b, W c, W d) {
  const int msb = static_cast<int>(8 * sizeof(T)) - 1, position = static_cast<int>(c & 255),
            length = static_cast<int>(d & 255);
  T f = b;
  for (int i = 0; i < length && position + i <= msb; ++i) {
    f = static_cast<T>((f & ~(T{1} << (position + i))) | (a >> i & 1) << (position + i));
  }
  return f;
}

PTX_TEST(logic_bit_fields) {
  check_operation<W, W, W, W>("bfe.u32", field<W>);
  check_operation<int32_t, int32_t, W, W>("bfe.s32", field<int32_t>);
  check_operation<D, D, W, W>("bfe.u64", field<D>);
  check_operation<int64_t, int64_t, W, W>("bfe.s64", field<int64_t>);
  check_operation<W, W, W, W, W>("bfi.b32", [](W a, W b, W c, W d) { return inserted<W>(a, b, c, d); });
  check_operation<D, D, D, W, W>("bfi.b64", [](D a, D b, W c, W d) { return inserted<D>(a, b, c, d); });
}

PTX_TEST(logic_counts) {
  check_operation<W, W>("popc.b32", [](W a) { return static_cast<W>(std::popcount(a)); });
  check_operation<W, D>("popc.b64", [](D a) { return static_cast<W>(std::popcount(a)); });
  check_operation<W, W>("clz.b32", [](W a) { return static_cast<W>(std::countl_zero(a)); });
  check_operation<W, D>("clz.b64", [](D a) { return static_cast<W>(std::countl_zero(a)); });
  check_operation<W, W>("brev.b32", [](W a) {
    W r = 0;
    for (int i = 0; i < 32; ++i) r |= (a >> i & 1) << (31 - i);
    return r;
  });
  check_operation<D, D>("brev.b64", [](D a) {
    D r = 0;
    for (int i = 0; i < 64; ++i) r |= (a >> i & 1) << (63 - i);
    return r;
  });
  check_operation<W, W>("bfind.u32", [](W a) { return a == 0 ? ~0u : 31u - static_cast<W>(std::countl_zero(a)); });
  check_operation<W, int32_t>("bfind.s32", [](int32_t a) {
    const W x = static_cast<W>(a < 0 ? ~a : a);
    return x == 0 ? ~0u : 31u - static_cast<W>(std::countl_zero(x));
  });
  check_operation<W, W>("bfind.shiftamt.u32", [](W a) { return a == 0 ? ~0u : static_cast<W>(std::countl_zero(a)); });
  check_operation<W, D>("bfind.u64", [](D a) { return a == 0 ? ~0u : 63u - static_cast<W>(std::countl_zero(a)); });
}

W byte_of(W a, W b, W selector) {
  const W byte = static_cast<W>((D{b} << 32 | a) >> (8 * (selector & 7)) & 255);
  return (selector & 8) == 0 ? byte : byte >= 128 ? 255 : 0;
}

PTX_TEST(logic_permute) {
  check_operation<W, W, W, W>("prmt.b32", [](W a, W b, W c) {
    W r = 0;
    for (W i = 0; i < 4; ++i) r |= byte_of(a, b, c >> (4 * i) & 15) << (8 * i);
    return r;
  });
  const auto table = [](const W(&selectors)[4][4]) {
    return [&selectors](W a, W b, W c) {
      W r = 0;
      for (W i = 0; i < 4; ++i) r |= byte_of(a, b, selectors[c & 3][i]) << (8 * i);
      return r;
    };
  };
  // PTX ISA, prmt: the table of the modes, lowest byte first.
  static constexpr W kForward[4][4] = {{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}};
  static constexpr W kBackward[4][4] = {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}};
  static constexpr W kLeft[4][4] = {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}};
  static constexpr W kRight[4][4] = {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}};
  static constexpr W kReplicate[4][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
  static constexpr W kReplicate16[4][4] = {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}};
  check_operation<W, W, W, W>("prmt.b32.f4e", table(kForward));
  check_operation<W, W, W, W>("prmt.b32.b4e", table(kBackward));
  check_operation<W, W, W, W>("prmt.b32.ecl", table(kLeft));
  check_operation<W, W, W, W>("prmt.b32.ecr", table(kRight));
  check_operation<W, W, W, W>("prmt.b32.rc8", table(kReplicate));
  check_operation<W, W, W, W>("prmt.b32.rc16", table(kReplicate16));
}

// Every table: all 256 functions of three bits.
PTX_TEST(logic_lop3) {
  std::string body = "mul.lo.u32 r0, %lane, 0x9e3779b9; xor.b32 r1, r0, 0x5bd1e995; mul.lo.u32 r2, r1, 0x85ebca6b;\n";
  for (int table = 0; table < 256; ++table) {
    body += "lop3.b32 r3, r0, r1, r2, " + std::to_string(table) + "; st.global.u32 [%out+" + std::to_string(4 * table) +
            "], r3;\n";
  }
  const auto results = run_warp(body, 256);
  for (W lane = 0; lane < 32; ++lane) {
    const W a = lane * 0x9e3779b9u, b = a ^ 0x5bd1e995u, c = b * 0x85ebca6bu;
    for (W table = 0; table < 256; ++table) {
      W expected = 0;
      for (int i = 0; i < 32; ++i) expected |= (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
      if (results[lane * 256 + table] != expected)
        return fail(__FILE__, __LINE__, "lop3 table " + std::to_string(table));
    }
  }
}

}  // namespace
}  // namespace ptxsim::test
