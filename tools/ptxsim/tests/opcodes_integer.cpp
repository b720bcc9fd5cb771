// Integer arithmetic against C++ on edge values: overflow, division by zero, the most negative value.
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

template <class T>
using U = std::make_unsigned_t<T>;

template <class T>
std::string type_name() {
  return (std::is_signed_v<T> ? "s" : "u") + std::to_string(8 * sizeof(T));
}

template <class T, class F>
void binary(const std::string& word, F f) {
  check_operation<T, T, T>(word + "." + type_name<T>(), f);
}

template <class T>
void arithmetic() {
  binary<T>("add", [](T a, T b) { return static_cast<T>(U<T>(a) + U<T>(b)); });
  binary<T>("sub", [](T a, T b) { return static_cast<T>(U<T>(a) - U<T>(b)); });
  binary<T>("mul.lo", [](T a, T b) {
    return static_cast<T>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
  });
  binary<T>("mul.hi", [](T a, T b) {
    if constexpr (std::is_signed_v<T>)
      return static_cast<T>(static_cast<__int128>(a) * b >> (8 * sizeof(T)));
    else
      return static_cast<T>(static_cast<unsigned __int128>(a) * b >> (8 * sizeof(T)));
  });
  binary<T>("min", [](T a, T b) { return a < b ? a : b; });
  binary<T>("max", [](T a, T b) { return a > b ? a : b; });
  binary<T>("div", [](T a, T b) -> T {
    if (b == 0) return static_cast<T>(-1);
    return static_cast<T>(static_cast<__int128>(a) / b);
  });
  binary<T>("rem", [](T a, T b) -> T { return b == 0 ? a : static_cast<T>(static_cast<__int128>(a) % b); });
  check_operation<T, T, T, T>("mad.lo." + type_name<T>(), [](T a, T b, T c) {
    return static_cast<T>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b) +
                          static_cast<unsigned __int128>(c));
  });
  check_operation<T, T, T, T>("mad.hi." + type_name<T>(), [](T a, T b, T c) {
    const auto high =
        static_cast<unsigned __int128>(std::is_signed_v<T>
                                           ? static_cast<unsigned __int128>(static_cast<__int128>(a) * b)
                                           : static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b)) >>
        (8 * sizeof(T));
    return static_cast<T>(static_cast<U<T>>(high) + static_cast<U<T>>(c));
  });
}

PTX_TEST(integer_arithmetic) {
  arithmetic<int16_t>();
  arithmetic<uint16_t>();
  arithmetic<int32_t>();
  arithmetic<uint32_t>();
  arithmetic<int64_t>();
  arithmetic<uint64_t>();
}

template <class T, class W>
void wide() {
  check_operation<W, T, T>("mul.wide." + type_name<T>(),
                           [](T a, T b) { return static_cast<W>(static_cast<__int128>(a) * b); });
  check_operation<W, T, T, W>("mad.wide." + type_name<T>(), [](T a, T b, W c) {
    return static_cast<W>(static_cast<unsigned __int128>(static_cast<__int128>(a) * b) +
                          static_cast<unsigned __int128>(c));
  });
}

PTX_TEST(integer_wide_products) {
  wide<int16_t, int32_t>();
  wide<uint16_t, uint32_t>();
  wide<int32_t, int64_t>();
  wide<uint32_t, uint64_t>();
}

template <class T>
void signs() {
  check_operation<T, T>("neg." + type_name<T>(), [](T a) { return static_cast<T>(U<T>(0) - U<T>(a)); });
  check_operation<T, T>("abs." + type_name<T>(),
                        [](T a) { return static_cast<T>(a < 0 ? U<T>(0) - U<T>(a) : U<T>(a)); });
}

PTX_TEST(integer_signs_and_saturation) {
  signs<int16_t>();
  signs<int32_t>();
  signs<int64_t>();
  using S = int32_t;
  const auto saturated = [](int64_t x) {
    return static_cast<S>(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x);
  };
  check_operation<S, S, S>("add.sat.s32", [&](S a, S b) { return saturated(int64_t{a} + b); });
  check_operation<S, S, S>("sub.sat.s32", [&](S a, S b) { return saturated(int64_t{a} - b); });
  check_operation<uint32_t, uint32_t, uint32_t, uint32_t>(
      "sad.u32", [](uint32_t a, uint32_t b, uint32_t c) { return c + (a > b ? a - b : b - a); });
  check_operation<S, S, S, S>("sad.s32", [](S a, S b, S c) {
    return static_cast<S>(static_cast<uint32_t>(c) + static_cast<uint32_t>(std::abs(int64_t{a} - b)));
  });
}

PTX_TEST(integer_24_bit_products) {
  using S = int32_t;
  const auto low = [](S x) { return static_cast<int64_t>(static_cast<S>(static_cast<uint32_t>(x) << 8) >> 8); };
  check_operation<S, S, S>("mul24.lo.s32", [&](S a, S b) { return static_cast<S>(low(a) * low(b)); });
  check_operation<S, S, S>("mul24.hi.s32", [&](S a, S b) { return static_cast<S>(low(a) * low(b) >> 16); });
  check_operation<uint32_t, uint32_t, uint32_t, uint32_t>("mad24.lo.u32", [](uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>(uint64_t{a & 0xffffff} * (b & 0xffffff)) + c;
  });
}

PTX_TEST(integer_dot_products) {
  using W = uint32_t;
  check_operation<W, W, W, W>("dp4a.s32.s32", [](W a, W b, W c) {
    for (int i = 0; i < 32; i += 8)
      c += static_cast<W>(int{static_cast<int8_t>(a >> i)} * int{static_cast<int8_t>(b >> i)});
    return c;
  });
  check_operation<W, W, W, W>("dp4a.u32.s32", [](W a, W b, W c) {
    for (int i = 0; i < 32; i += 8)
      c += static_cast<W>(static_cast<int>(a >> i & 255) * int{static_cast<int8_t>(b >> i)});
    return c;
  });
  check_operation<W, W, W, W>("dp2a.hi.s32.u32", [](W a, W b, W c) {
    for (int i = 0; i < 2; ++i)
      c += static_cast<W>(int{static_cast<int16_t>(a >> (16 * i))} * static_cast<int>(b >> (8 * i + 16) & 255));
    return c;
  });
}

// 128 bits in two registers: the carry goes from add.cc to addc, the borrow from sub.cc to subc.
PTX_TEST(integer_carries) {
  const auto sums = run_warp(
      "cvt.u64.u32 d0, %lane; neg.s64 d0, d0; mov.u64 d1, 5; add.cc.u64 d2, d0, 3; addc.u64 d3, d1, 0;\n"
      "sub.cc.u64 d4, 3, d0; subc.u64 d5, d1, 0; cvt.u32.u64 r0, d3; cvt.u32.u64 r1, d5; st.global.v2.u32 [%out], {r0, "
      "r1};",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(sums[2 * lane], lane > 0 && lane <= 3 ? 6u : 5u);  // 2^64 - lane + 3 carries
    CHECK_EQUAL(sums[2 * lane + 1], lane > 0 ? 4u : 5u);           // 3 - (2^64 - lane) borrows
  }
}

// A product of two 64-bit numbers from words of 32 bits, as the argument reduction of sinf computes it.
PTX_TEST(integer_products_with_carries) {
  const auto got = run_warp(
      "mul.lo.u32 r0, %lane, 0x9e3779b9; xor.b32 r1, r0, 0xdeadbeef; not.b32 r2, r0; mul.lo.u32 r3, r1, 0x85ebca6b;\n"
      "mul.lo.u32 r4, r0, r2; mul.hi.u32 r5, r0, r2; mad.lo.cc.u32 r5, r1, r2, r5; madc.hi.u32 r6, r1, r2, 0; "
      "mad.lo.cc.u32 r5, r0, r3, r5; madc.hi.cc.u32 r6, r0, r3, r6; addc.u32 r7, 0, 0; "
      "mad.lo.cc.u32 r6, r1, r3, r6; madc.hi.u32 r7, r1, r3, r7; st.global.v4.u32 [%out], {r4, r5, r6, r7};",
      4);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t a0 = lane * 0x9e3779b9u, a1 = a0 ^ 0xdeadbeefu, b0 = ~a0, b1 = a1 * 0x85ebca6bu;
    const unsigned __int128 product =
        static_cast<unsigned __int128>(uint64_t{a1} << 32 | a0) * (uint64_t{b1} << 32 | b0);
    for (uint32_t word = 0; word < 4; ++word)
      CHECK_EQUAL(got[4 * lane + word], static_cast<uint32_t>(product >> (32 * word)));
  }
}

}  // namespace
}  // namespace ptxsim::test
