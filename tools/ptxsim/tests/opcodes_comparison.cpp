// setp, set, selp, slct, and arithmetic of predicates.
#include "formats.h"
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

template <class T>
bool ordered_result(const std::string& name, T a, T b) {
  const bool nan = a != a || b != b;
  if (name == "num") return !nan;
  if (name == "nan") return nan;
  const bool unordered = name.size() == 3;
  if (nan) return unordered;
  const std::string word = name.substr(0, 2);
  if (word == "eq") return a == b;
  if (word == "ne") return a != b;
  if (word == "lt" || word == "lo") return a < b;
  if (word == "le" || word == "ls") return a <= b;
  if (word == "gt" || word == "hi") return a > b;
  return a >= b;
}

// set.u32 shows what setp computes; the predicate itself is tested below.
template <class T>
void comparisons(const std::string& type, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    check_operation<uint32_t, T, T>(std::string("set.") + name + ".u32." + type,
                                    [name](T a, T b) { return ordered_result<T>(name, a, b) ? ~0u : 0u; });
  }
}

PTX_TEST(comparison_of_numbers) {
  const std::initializer_list<const char*> integer = {"eq", "ne", "lt", "le", "gt", "ge"};
  const std::initializer_list<const char*> floating = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                                       "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  comparisons<int16_t>("s16", integer);
  comparisons<uint16_t>("u16", integer);
  comparisons<int32_t>("s32", integer);
  comparisons<uint32_t>("u32", {"eq", "ne", "lo", "ls", "hi", "hs"});
  comparisons<int64_t>("s64", integer);
  comparisons<uint64_t>("u64", integer);
  comparisons<float>("f32", floating);
  comparisons<double>("f64", floating);
  check_operation<float, float, float>("set.lt.f32.f32", [](float a, float b) { return a < b ? 1.0f : 0.0f; });
  check_operation<uint16_t, uint16_t, uint16_t>("set.ge.f16.f16", [](uint16_t a, uint16_t b) {
    return to_float(Half{a}) >= to_float(Half{b}) ? uint16_t{0x3c00} : uint16_t{0};
  });
  check_operation<uint32_t, uint32_t, uint32_t>("set.gt.bf16x2.bf16x2", [](uint32_t a, uint32_t b) {
    const auto half = [&](int s) {
      return to_float(BFloat16{static_cast<uint16_t>(a >> s)}) > to_float(BFloat16{static_cast<uint16_t>(b >> s)})
                 ? 0x3f80u << s
                 : 0u;
    };
    return half(0) | half(16);
  });
}

PTX_TEST(comparison_both_predicates_and_combination) {
  const auto got = run_warp(
      "setp.lt.u32 p0, %lane, 8; setp.lt.and.u32 p1|p2, %lane, 12, p0; setp.ge.or.s32 p3|p4, %lane, 30, !p0; "
      "setp.eq.xor.u32 p5, %lane, 3, p0;\n"
      "mov.u32 r0, 0; @p1 or.b32 r0, r0, 1; @p2 or.b32 r0, r0, 2; @p3 or.b32 r0, r0, 4; @p4 or.b32 r0, r0, 8; @p5 "
      "or.b32 r0, r0, 16; @!p0 or.b32 r0, r0, 32;\n"
      "and.pred p6, p0, p5; @p6 or.b32 r0, r0, 64; xor.pred p7, p0, p5; @p7 or.b32 r0, r0, 128; not.pred p8, p0; @p8 "
      "or.b32 r0, r0, 256; mov.pred p9, p0; or.pred p9, p9, p3; @p9 or.b32 r0, r0, 512;\n"
      "mov.pred p0, -1; @p0 or.b32 r0, r0, 1024; mov.pred p0, 0; @p0 or.b32 r0, r0, 2048; st.global.u32 [%out], r0;",
      1);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const bool p0 = lane < 8, p1 = lane < 12 && p0, p2 = !(lane < 12) && p0, p3 = lane >= 30 || !p0,
               p4 = !(lane >= 30) || !p0, p5 = (lane == 3) != p0;
    const uint32_t expected = p1 | p2 << 1 | p3 << 2 | p4 << 3 | p5 << 4 | !p0 << 5 | (p0 && p5) << 6 |
                              (p0 != p5) << 7 | !p0 << 8 | (p0 || p3) << 9 | 1024;
    CHECK_EQUAL(got[lane], expected);
  }
}

PTX_TEST(comparison_of_halves_in_pairs) {
  // Low halves 1 < 2, high halves 3 > 2, and a NaN.
  const auto got = run_warp(
      "mov.u32 r0, 0x42003c00; mov.u32 r1, 0x40004000; setp.lt.f16x2 p0|p1, r0, r1; mov.u32 r2, 0; @p0 or.b32 r2, r2, "
      "1; @p1 or.b32 r2, r2, 2;\n"
      "mov.u32 r0, 0x7fff3f80; mov.u32 r1, 0x3f803f80; setp.geu.bf16x2 p0|p1, r0, r1; @p0 or.b32 r2, r2, 4; @p1 or.b32 "
      "r2, r2, 8; st.global.u32 [%out], r2;",
      1);
  CHECK_EQUAL(got[0], 1u | 4u | 8u);
}

PTX_TEST(comparison_selections) {
  check_operation<uint32_t, uint32_t, uint32_t, int32_t>(
      "slct.u32.s32", [](uint32_t a, uint32_t b, int32_t c) { return c >= 0 ? a : b; });
  check_operation<uint64_t, uint64_t, uint64_t, float>("slct.u64.f32",
                                                       [](uint64_t a, uint64_t b, float c) { return c >= 0 ? a : b; });
  const auto got = run_warp(
      "setp.gt.u32 p0, %lane, 20; selp.b32 r0, %lane, 99, p0; cvt.u64.u32 d0, %lane; selp.b64 d1, 7, d0, p0; "
      "cvt.u32.u64 r1, d1; selp.b32 r2, 1, 2, !p0; add.u32 r1, r1, r2; st.global.v2.u32 [%out], {r0, r1};",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(got[2 * lane], lane > 20 ? lane : 99u);
    CHECK_EQUAL(got[2 * lane + 1], (lane > 20 ? 7u : lane) + (lane > 20 ? 2u : 1u));
  }
}

}  // namespace
}  // namespace ptxsim::test
