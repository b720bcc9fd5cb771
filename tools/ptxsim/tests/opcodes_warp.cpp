// shfl, vote, match, redux, elect, bar.warp.sync.
#include <algorithm>

#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

// __shfl_*_sync of CUDA: width w, what the reference manual says in words.
PTX_TEST(warp_shuffles) {
  for (const uint32_t width : {32u, 16u, 8u, 4u}) {
    for (const uint32_t distance : {0u, 1u, 3u, 7u, 15u, 31u}) {
      const uint32_t segment = (32 - width) << 8;
      const std::string b = std::to_string(distance), up = std::to_string(segment),
                        other = std::to_string(segment | 31);
      const auto got = run_warp(
          "add.u32 r0, %lane, 100;\nshfl.sync.up.b32 r1|p0, r0, " + b + ", " + up +
              ", -1; shfl.sync.down.b32 r2|p1, r0, " + b + ", " + other + ", -1; shfl.sync.bfly.b32 r3|p2, r0, " + b +
              ", " + other + ", -1; shfl.sync.idx.b32 r4|p3, r0, " + b + ", " + other +
              ", 0xffffffff;\nselp.u32 r5, 1, 0, p0; selp.u32 r6, 2, 0, p1; or.b32 r5, r5, r6; selp.u32 r6, 4, 0, p2; "
              "or.b32 r5, r5, r6; selp.u32 r6, 8, 0, p3; or.b32 r5, r5, r6;\n"
              "st.global.v4.u32 [%out], {r1, r2, r3, r4}; st.global.u32 [%out+16], r5;",
          8);
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t base = lane / width * width, top = base + width;
        const bool in_up = lane >= base + distance, in_down = lane + distance < top, in_xor = (lane ^ distance) < top;
        CHECK_EQUAL(got[8 * lane], 100 + (in_up ? lane - distance : lane));
        CHECK_EQUAL(got[8 * lane + 1], 100 + (in_down ? lane + distance : lane));
        CHECK_EQUAL(got[8 * lane + 2], 100 + (in_xor ? lane ^ distance : lane));
        CHECK_EQUAL(got[8 * lane + 3], 100 + base + distance % width);
        CHECK_EQUAL(got[8 * lane + 4], in_up * 1u | in_down * 2u | in_xor * 4u | 8u);
      }
    }
  }
}

PTX_TEST(warp_shuffle_from_a_lane_that_does_not_take_part) {
  std::string message;
  CHECK_EQUAL(
      error_kind([] { run_warp("setp.lt.u32 p0, %lane, 16; @p0 shfl.sync.down.b32 r0, %lane, 8, 31, 0xffff;", 1); },
                 &message),
      std::string("mask"));
  CHECK(message.find("lane 16") != std::string::npos);
  // Within their half, both halves shuffle at once.
  const auto got = run_warp(
      "setp.lt.u32 p0, %lane, 16; selp.b32 r1, 0xffff, 0xffff0000, p0; shfl.sync.bfly.b32 r0, %lane, 8, 31, r1; "
      "st.global.u32 [%out], r0;",
      1);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK_EQUAL(got[lane], lane ^ 8);
}

PTX_TEST(warp_votes) {
  const auto got = run_warp(
      "setp.lt.u32 p0, %lane, 7; vote.sync.ballot.b32 r0, p0, -1; vote.sync.ballot.b32 r1, !p0, -1; setp.lt.u32 p1, "
      "%lane, 32; vote.sync.all.pred p2, p1, -1; vote.sync.all.pred p3, p0, -1; vote.sync.any.pred p4, p0, -1; "
      "vote.sync.any.pred p5, !p1, -1; vote.sync.uni.pred p6, p1, -1; vote.sync.uni.pred p7, p0, -1;\n"
      "selp.u32 r2, 1, 0, p2; @p3 or.b32 r2, r2, 2; @p4 or.b32 r2, r2, 4; @p5 or.b32 r2, r2, 8; @p6 or.b32 r2, r2, 16; "
      "@p7 or.b32 r2, r2, 32;\n"
      "mov.u32 r3, 0; setp.gt.u32 p8, %lane, 3; @!p8 vote.sync.ballot.b32 r3, p0, 15; st.global.v4.u32 [%out], {r0, "
      "r1, r2, r3};",
      4);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(got[4 * lane], 0x7fu);
    CHECK_EQUAL(got[4 * lane + 1], ~0x7fu);
    CHECK_EQUAL(got[4 * lane + 2], 1u | 4u | 16u);
    CHECK_EQUAL(got[4 * lane + 3], lane <= 3 ? 15u : 0u);
  }
}

PTX_TEST(warp_match_redux_elect) {
  const auto got = run_warp(
      "rem.u32 r0, %lane, 5; match.any.sync.b32 r1, r0, -1; match.all.sync.b32 r2|p0, r0, -1; mov.u32 r3, 4; "
      "match.all.sync.b32 r4|p1, r3, -1; cvt.u64.u32 d0, r0; match.any.sync.b64 r5, d0, -1; selp.u32 r6, 1, 0, p0; @p1 "
      "or.b32 r6, r6, 2;\n"
      "st.global.v4.u32 [%out], {r1, r2, r4, r5}; elect.sync r7|p2, -1; @p2 or.b32 r6, r6, 4; shl.b32 r7, r7, 8; "
      "or.b32 r6, r6, r7;\n"
      "sub.s32 r0, %lane, 10; redux.sync.add.s32 r1, r0, -1; redux.sync.min.s32 r2, r0, -1; redux.sync.max.u32 r3, r0, "
      "-1; st.global.v4.u32 [%out+16], {r6, r1, r2, r3};\n"
      "redux.sync.xor.b32 r1, r0, -1; redux.sync.and.b32 r2, r0, -1; redux.sync.or.b32 r3, %lane, -1; "
      "redux.sync.max.s32 r4, r0, -1; st.global.v4.u32 [%out+32], {r1, r2, r3, r4};",
      12);
  uint32_t exclusive = 0, conjunction = ~0u;
  for (uint32_t lane = 0; lane < 32; ++lane) exclusive ^= lane - 10, conjunction &= lane - 10;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    uint32_t same = 0;
    for (uint32_t other = 0; other < 32; ++other) same |= uint32_t{other % 5 == lane % 5} << other;
    const uint32_t* g = &got[12 * lane];
    CHECK(g[0] == same && g[1] == 0 && g[2] == ~0u && g[3] == same);
    CHECK_EQUAL(g[4], 2u | (lane == 0 ? 4u : 0u));
    CHECK(g[5] == 496u - 320u && g[6] == static_cast<uint32_t>(-10) && g[7] == ~0u);
    CHECK(g[8] == exclusive && g[9] == conjunction && g[10] == 31 && g[11] == 21);
  }
}

}  // namespace
}  // namespace ptxsim::test
