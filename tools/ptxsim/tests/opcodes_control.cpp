// Branches, divergence, calls, barriers, scopes of asm blocks, and reports of programs that hang.
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

PTX_TEST(control_divergence_and_reconvergence) {
  // Each lane loops lane times; afterwards a shuffle needs all of them.
  const auto got = run_warp(
      "mov.u32 r0, 0; mov.u32 r1, 0;\nLOOP: setp.ge.u32 p0, r1, %lane; @p0 bra DONE; add.u32 r1, r1, 1; add.u32 r0, "
      "r0, r1; bra.uni LOOP;\n"
      "DONE: activemask.b32 r3; shfl.sync.bfly.b32 r2, r0, 1, 31, -1; st.global.v2.u32 [%out], {r0, r2};",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(got[2 * lane], lane * (lane + 1) / 2);
    CHECK_EQUAL(got[2 * lane + 1], (lane ^ 1) * ((lane ^ 1) + 1) / 2);
  }
}

PTX_TEST(control_vote_waits_for_lanes_behind) {
  // The code of the odd lanes lies after the vote: stepping the lowest pc alone would vote with half of the warp.
  const auto got = run_warp(
      "and.b32 r0, %lane, 1; setp.ne.u32 p0, r0, 0; mov.u32 r1, 1; @p0 bra ODD;\n"
      "VOTE: setp.ne.u32 p1, r1, 0; vote.sync.ballot.b32 r2, p1, 0xffffffff; st.global.u32 [%out], r2; ret;\nODD: "
      "mov.u32 r1, 0; bra VOTE;",
      1);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK_EQUAL(got[lane], 0x55555555u);
}

PTX_TEST(control_equal_labels_in_nested_scopes) {
  // What two expansions of one inline asm with a label and a register look like; the inner ones hide the outer.
  const auto got = run_warp(
      "mov.u32 r0, 0;\n{ .reg .pred q; .reg .b32 r1; mov.u32 r1, 5; setp.lt.u32 q, %lane, 4; @q bra L; add.u32 r0, r0, "
      "1; L: { .reg .b32 r1; mov.u32 r1, 7; setp.lt.u32 q, %lane, 8; @q bra L; add.u32 r0, r0, 10; L: add.u32 r0, r0, "
      "r1; } add.u32 r0, r0, r1; }\n"
      "{ .reg .pred q; setp.lt.u32 q, %lane, 16; @q bra L; add.u32 r0, r0, 100; L: }\nst.global.u32 [%out], r0;",
      1);
  for (uint32_t lane = 0; lane < 32; ++lane)
    CHECK_EQUAL(got[lane], 12 + (lane >= 4 ? 1 : 0) + (lane >= 8 ? 10 : 0) + (lane >= 16 ? 100u : 0u));
}

PTX_TEST(control_indexed_branch) {
  const auto got = run_warp(
      "rem.u32 r0, %lane, 3; TARGETS: .branchtargets A, B, C; brx.idx r0, TARGETS; A: mov.u32 r1, 10; bra END; B: "
      "mov.u32 r1, 20; bra END; C: mov.u32 r1, 30; END: st.global.u32 [%out], r1;",
      1);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK_EQUAL(got[lane], 10 * (lane % 3 + 1));
  CHECK_EQUAL(error_kind([] { run_warp("T: .branchtargets A; brx.idx %lane, T; A: ret;", 1); }),
              std::string("out-of-bounds"));
}

PTX_TEST(control_calls) {
  const std::string functions =
      ".func (.param .b32 result) twice(.param .b32 x)\n{ .reg .b32 a; .reg .pred q; ld.param.b32 a, [x]; setp.eq.u32 "
      "q, a, 3; @q bra L; shl.b32 a, a, 1; L: st.param.b32 [result+0], a; ret; }\n"
      ".func (.param .align 8 .b8 result[8]) pair(.param .b32 x, .param .b64 where)\n{ .reg .b32 a, b; .reg .b64 w; "
      "ld.param.b32 a, [x+0]; ld.param.b64 w, [where];\n"
      "{ .param .b32 p; st.param.b32 [p+0], a; .param .b32 r; call.uni (r), twice, (p); ld.param.b32 b, [r+0]; }\n "
      "st.u32 [w], 77; st.param.v2.b32 [result], {a, b}; ret; }\n";
  const auto got = run_warp(
      ".local .align 8 .b8 mine[8]; mov.u64 d0, mine; cvta.local.u64 d0, d0;\n"
      "{ .param .b32 param0; st.param.b32 [param0+0], %lane; .param .b64 param1; st.param.b64 [param1+0], d0; .param "
      ".align 8 .b8 retval0[8]; call.uni (retval0), pair, (param0, param1); ld.param.v2.b32 {r0, r1}, [retval0+0]; }\n"
      "setp.lt.u32 p0, %lane, 5; mov.u32 r3, 1; { .param .b32 a; st.param.b32 [a], 21; .param .b32 r; @p0 call (r), "
      "twice, (a); @p0 ld.param.b32 r3, [r]; }\n"
      "ld.local.u32 r2, [mine]; st.global.v4.u32 [%out], {r0, r1, r2, r3};",
      4, {}, functions);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(got[4 * lane], lane);
    CHECK_EQUAL(got[4 * lane + 1], lane == 3 ? 3 : 2 * lane);
    CHECK_EQUAL(got[4 * lane + 2], 77u);
    CHECK_EQUAL(got[4 * lane + 3], lane < 5 ? 42u : 1u);
  }
  CHECK_EQUAL(error_kind([] { run_warp("call again, ();", 1, {}, ".func again()\n{ call again, (); ret; }"); }),
              std::string("syntax"));
}

PTX_TEST(control_barriers_between_warps) {
  Run run;
  run.block = {96, 1, 1};
  for (const bool shuffle : {false, true}) {
    run.options.shuffle = shuffle;
    const auto got = run_warp(
        ".shared .align 4 .b32 s[96]; mov.u32 r0, s; mad.lo.u32 r1, %lane, 4, r0; st.shared.u32 [r1], %lane; bar.sync "
        "0; xor.b32 r2, %lane, 32; setp.lt.u32 p0, r2, 96; @!p0 mov.u32 r2, %lane; mad.lo.u32 r1, r2, 4, r0; "
        "ld.shared.u32 r3, [r1];\n"
        "setp.lt.u32 p1, %lane, 40; bar.red.popc.u32 r4, 0, p1; bar.red.and.pred p2, 0, p1; bar.red.or.pred p3, 0, "
        "!p1; selp.u32 r5, 1, 0, p2; selp.u32 r6, 2, 0, p3; or.b32 r5, r5, r6; st.global.v4.u32 [%out], {r2, r3, r4, "
        "r5};",
        4, run);
    for (uint32_t thread = 0; thread < 96; ++thread) {
      CHECK_EQUAL(got[4 * thread], got[4 * thread + 1]);
      CHECK_EQUAL(got[4 * thread + 2], 40u);
      CHECK_EQUAL(got[4 * thread + 3], 2u);
    }
  }
}

PTX_TEST(control_named_barriers) {
  // Warp 0 produces for warps 1 and 2: it arrives at barrier 1, they wait at it.
  Run run;
  run.block = {96, 1, 1};
  const auto got = run_warp(
      ".shared .align 4 .b32 s; setp.ge.u32 p0, %lane, 32; @p0 bra CONSUME; mov.u32 r0, 9; setp.eq.u32 p1, %lane, 0; "
      "@p1 st.shared.u32 [s], r0; membar.cta; bar.arrive 1, 96; bra END;\n"
      "CONSUME: bar.sync 1, 96; ld.shared.u32 r0, [s];\nEND: st.global.u32 [%out], r0;",
      1, run);
  for (const uint32_t value : got) CHECK_EQUAL(value, 9u);
}

PTX_TEST(control_exited_threads_do_not_hold_a_barrier) {
  Run run;
  run.block = {70, 1, 1};
  const auto got = run_warp("setp.ge.u32 p0, %lane, 50; @p0 exit; bar.sync 0; st.global.u32 [%out], 1;", 1, run);
  for (uint32_t thread = 0; thread < 70; ++thread) CHECK_EQUAL(got[thread], thread < 50 ? 1u : 0u);
}

PTX_TEST(control_errors) {
  std::string message;
  Run two_warps;
  two_warps.block = {64, 1, 1};
  // Half of a warp at one bar.sync, half at another.
  CHECK_EQUAL(
      error_kind([] { run_warp("setp.lt.u32 p0, %lane, 16; @p0 bra A; bar.sync 0; bra B; A: bar.sync 0; B: ret;", 1); },
                 &message),
      std::string("divergence"));
  CHECK(message.find("lanes 0x0000ffff") != std::string::npos && message.find("lanes 0xffff0000") != std::string::npos);
  // One warp waits for a barrier that the other never reaches.
  CHECK_EQUAL(error_kind([&] { run_warp("setp.lt.u32 p0, %lane, 32; @p0 bar.sync 1, 64;", 1, two_warps); }, &message),
              std::string("deadlock"));
  CHECK(message.find("bar.sync 1, 64;") != std::string::npos);
  // A shuffle with a full mask in half of the warp, while the others wait at the next.
  CHECK_EQUAL(error_kind([] {
                run_warp(
                    "setp.lt.u32 p0, %lane, 16; @!p0 bra A; shfl.sync.bfly.b32 r0, %lane, 1, 31, -1; A: "
                    "shfl.sync.bfly.b32 r0, %lane, 1, 31, -1;",
                    1);
              }),
              std::string("deadlock"));
  CHECK_EQUAL(error_kind([] { run_warp("setp.lt.u32 p0, %lane, 16; @p0 exit; vote.sync.ballot.b32 r0, p0, -1;", 1); }),
              std::string("mask"));
  CHECK_EQUAL(error_kind([] { run_warp("vote.sync.ballot.b32 r0, p0, 0xffff;", 1); }), std::string("mask"));
  CHECK_EQUAL(error_kind([] { run_warp("trap;", 1); }), std::string("trap"));
  CHECK_EQUAL(error_kind([] { run_warp("add.u32 r0, r1, r2; frobnicate.f32 f0, f1;", 1); }, &message),
              std::string("unknown-opcode"));
  CHECK(message.find("frobnicate.f32") != std::string::npos && message.find("PTX line 9") != std::string::npos);
  CHECK_EQUAL(error_kind([] { run_warp("add.quick.u32 r0, r1, r2;", 1); }, &message), std::string("unknown-opcode"));
  CHECK_EQUAL(error_kind([] { run_warp("add.u32 r0, r1, d2;", 1); }), std::string("syntax"));
  CHECK_EQUAL(error_kind([] { run_warp("add.u32 r0, r1, r99;", 1); }), std::string("syntax"));
  CHECK_EQUAL(error_kind([] { run_warp("bra NOWHERE;", 1); }), std::string("syntax"));
  CHECK_EQUAL(error_kind([] { Module::parse(".visible .entry k( { ret; }"); }), std::string("syntax"));
  Run huge;
  huge.block = {1025, 1, 1};
  CHECK_EQUAL(error_kind([&] { run_warp("", 1, huge); }), std::string("launch"));
  huge.block = {32, 1, 1};
  huge.dynamic_shared = 300000;
  CHECK_EQUAL(error_kind([&] { run_warp("", 1, huge); }), std::string("launch"));
}

PTX_TEST(control_reports_name_the_source_line) {
  std::string message;
  const std::string text = kernel_text(
                               ".reg .b32 r;\n.loc 1 12 3\nmov.u32 r, 1;\n.loc 2 40 1, function_name F, inlined_at 1 "
                               "13 5\nld.global.u32 r, [64];\nret;",
                               0) +
                           ".file 1 \"kernel.cu\"\n.file 2 \"helper.cuh\"\n";
  CHECK_EQUAL(error_kind([&] { Run().launch(text, {}); }, &message), std::string("out-of-bounds"));
  CHECK(message.find("helper.cuh:40, inlined at kernel.cu:13") != std::string::npos);
}

PTX_TEST(control_special_registers) {
  Run run;
  run.grid = {3, 2, 2};
  run.block = {4, 5, 2};
  Buffer<uint32_t> out(12 * 40 * 4);
  run.launch(
      kernel_text(
          ".reg .b64 o; .reg .b32 r<10>; ld.param.u64 o, [arg0]; mov.u32 r0, %ctaid.z; mov.u32 r1, %nctaid.y; "
          "mad.lo.u32 r0, r0, r1, %ctaid.y; mad.lo.u32 r0, r0, %nctaid.x, %ctaid.x;\n"
          "mov.u32 r2, %tid.z; mad.lo.u32 r2, r2, %ntid.y, %tid.y; mad.lo.u32 r2, r2, %ntid.x, %tid.x; mad.lo.u32 r3, "
          "r0, 40, r2; mad.wide.u32 o, r3, 16, o; mov.u32 r4, %laneid; mov.u32 r5, %warpid; mov.u32 r6, %lanemask_lt;\n"
          "st.global.v4.u32 [o], {r3, r4, r5, r6}; ret;",
          1),
      {address(out)});
  for (uint32_t i = 0; i < 480; ++i) {
    const uint32_t thread = i % 40, lane = thread % 32;
    CHECK(out[4 * i] == i && out[4 * i + 1] == lane && out[4 * i + 2] == thread / 32 &&
          out[4 * i + 3] == (1u << lane) - 1);
  }
}

}  // namespace
}  // namespace ptxsim::test
