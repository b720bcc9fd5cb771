// cp.async: lazy, poisoned, by groups, with zero fill.
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

const std::string kHead =
    ".reg .b64 a, o; .reg .b32 r<10>, t, s; .reg .pred p<4>; .shared .align 16 .b8 buffer[2048]; ld.param.u64 a, "
    "[arg0]; ld.param.u64 o, [arg1]; mov.u32 t, %tid.x; mad.wide.u32 a, t, 16, a; mad.wide.u32 o, t, 32, o; mov.u32 s, "
    "buffer; mad.lo.u32 s, t, 16, s;\n";

// Returns 8 results of each of 32 lanes.
std::vector<uint32_t> run(const std::string& body) {
  std::vector<uint32_t> values(128 + 4);
  for (uint32_t i = 0; i < values.size(); ++i) values[i] = 1000 + i;
  Buffer<uint32_t> in(values), out(256);
  Run().launch(kernel_text(kHead + body + "\nret;", 2), {address(in), address(out)});
  return out.values();
}

PTX_TEST(async_copies_complete_at_the_wait) {
  const auto got =
      run("mov.u32 r9, 5; st.shared.u32 [s], r9; cp.async.cg.shared.global [s], [a], 16; cp.async.commit_group; "
          "ld.shared.u32 r0, [s];\n"
          "cp.async.ca.shared.global [s+512], [a+4], 4; cp.async.commit_group; cp.async.ca.shared.global [s+1024], "
          "[a+8], 8; cp.async.commit_group;\n"
          "cp.async.wait_group 2; ld.shared.u32 r1, [s]; ld.shared.u32 r2, [s+512]; cp.async.wait_group 1; "
          "ld.shared.u32 r3, [s+512]; ld.shared.u32 r4, [s+1024]; cp.async.wait_group 0; ld.shared.u32 r5, [s+1028];\n"
          "st.global.v4.u32 [o], {r0, r1, r2, r3}; st.global.v2.u32 [o+16], {r4, r5};");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t first = 1000 + 4 * lane;
    const uint32_t expected[] = {~0u, first, ~0u, first + 1, ~0u, first + 3};
    for (uint32_t i = 0; i < 6; ++i) CHECK_EQUAL(got[8 * lane + i], expected[i]);
  }
}

PTX_TEST(async_zero_fill_and_ignored_sources) {
  const auto got =
      run("shr.u32 r0, t, 1; and.b32 r0, r0, 15; setp.gt.u32 p0, t, 15; cp.async.cg.shared.global [s], [a], 16, r0; "
          "cp.async.cg.shared.global.L2::128B [s+512], [a], 16, p0;\n"
          // A source size of 0 reads nothing: the address may be anything.
          "mov.u64 a, 64; cp.async.ca.shared::cta.global [s+1024], [a], 8, 0; cp.async.wait_all;\n"
          "ld.shared.v4.u32 {r0, r1, r2, r3}, [s]; ld.shared.v2.u32 {r4, r5}, [s+512]; ld.shared.v2.u32 {r6, r7}, "
          "[s+1024]; st.global.v4.u32 [o], {r0, r1, r2, r3}; st.global.v4.u32 [o+16], {r4, r5, r6, r7};");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    uint32_t expected[4] = {};
    const uint32_t source[] = {1000 + 4 * lane, 1001 + 4 * lane, 1002 + 4 * lane, 1003 + 4 * lane};
    std::memcpy(expected, source, lane / 2 & 15);
    for (uint32_t i = 0; i < 4; ++i) CHECK_EQUAL(got[8 * lane + i], expected[i]);
    CHECK_EQUAL(got[8 * lane + 4], lane > 15 ? 0u : source[0]);
    CHECK_EQUAL(got[8 * lane + 6], 0u);
  }
}

PTX_TEST(async_reads_its_source_at_the_wait) {
  const auto got =
      run("cp.async.ca.shared.global [s], [a], 4; cp.async.commit_group; mov.u32 r0, 3; st.global.u32 [a], r0; "
          "cp.async.wait_group 0; ld.shared.u32 r1, [s]; st.global.u32 [o], r1;");
  CHECK_EQUAL(got[8], 3u);
}

PTX_TEST(async_errors) {
  std::string message;
  CHECK_EQUAL(
      error_kind([] { run("cp.async.cg.shared.global [s], [a], 16; cp.async.commit_group; cp.async.wait_group 1;"); },
                 &message),
      std::string("async"));
  CHECK(message.find("cp.async.cg.shared.global [s], [a], 16;") != std::string::npos);
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s], [a], 16; cp.async.wait_group 0;"); }),
              std::string("async"));  // not committed
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s], [a+4], 16; cp.async.wait_all;"); }),
              std::string("misaligned"));
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s+8], [a], 16; cp.async.wait_all;"); }),
              std::string("misaligned"));
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s], [a+32], 16; cp.async.wait_all;"); }),
              std::string("out-of-bounds"));
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s+1600], [a], 16; cp.async.wait_all;"); }),
              std::string("out-of-bounds"));
  CHECK_EQUAL(error_kind([] { run("mov.u32 r0, 20; cp.async.cg.shared.global [s], [a], 16, r0; cp.async.wait_all;"); }),
              std::string("out-of-bounds"));
  CHECK_EQUAL(error_kind([] { run("cp.async.cg.shared.global [s], [a], 8; cp.async.wait_all;"); }),
              std::string("syntax"));
  // A source of which only some bytes are read may end within its buffer.
  CHECK_EQUAL(error_kind([] {
                run("setp.eq.u32 p0, t, 31; selp.u32 r0, 16, 0, p0; @p0 cp.async.cg.shared.global [s], [a+16], 16, r0; "
                    "cp.async.wait_all;");
              }),
              std::string("none"));
}

}  // namespace
}  // namespace ptxsim::test
