// Traffic of access patterns whose sectors and wavefronts are known.
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

Counters count(const std::string& body, uint32_t blocks = 1) {
  Buffer<uint32_t> memory(std::vector<uint32_t>(65536, 0));
  Run run;
  run.grid = {blocks, 1, 1};
  run.launch(kernel_text(".reg .b64 a, d<4>; .reg .b32 r<10>, t, s; .reg .pred p<4>; .shared .align 128 .b8 "
                         "buffer[16384]; ld.param.u64 a, [arg0]; mov.u32 t, %tid.x; mov.u32 s, buffer;\n" +
                             body + "\nret;",
                         1),
             {address(memory)});
  return run.counters;
}

PTX_TEST(counters_global_sectors) {
  Counters c = count("mad.wide.u32 d0, t, 4, a; ld.global.u32 r0, [d0];");
  CHECK(c.global_load_bytes == 128 && c.global_load_sectors == 4 && c.unique_load_sectors == 4 &&
        c.global_store_bytes == 0);
  c = count(
      "mad.wide.u32 d0, t, 16, a; ld.global.v4.u32 {r0, r1, r2, r3}, [d0]; st.global.v4.u32 [d0], {r0, r1, r2, r3};");
  CHECK(c.global_load_bytes == 512 && c.global_load_sectors == 16 && c.global_store_bytes == 512 &&
        c.global_store_sectors == 16 && c.unique_store_sectors == 16);
  c = count("mad.wide.u32 d0, t, 128, a; ld.global.u32 r0, [d0];");
  CHECK(c.global_load_bytes == 128 && c.global_load_sectors == 32);
  c = count("ld.global.u32 r0, [a];");
  CHECK(c.global_load_bytes == 128 && c.global_load_sectors == 1);
  c = count("mad.wide.u32 d0, t, 4, a; ld.global.u32 r0, [d0+4];");  // over the edge of a fifth sector
  CHECK_EQUAL(c.global_load_sectors, 5u);
  c = count(
      "sub.u32 r0, 31, t; mad.wide.u32 d0, r0, 8, a; ld.global.u32 r0, [d0]; ld.global.u32 r1, [d0];");  // descending
  CHECK(c.global_load_sectors == 16 && c.unique_load_sectors == 8);
  c = count("setp.lt.u32 p0, t, 8; mad.wide.u32 d0, t, 4, a; @p0 ld.global.u32 r0, [d0];");
  CHECK(c.global_load_bytes == 32 && c.global_load_sectors == 1);
  c = count("mad.wide.u32 d0, t, 4, a; atom.global.add.u32 r0, [d0], 1;");
  CHECK(c.global_load_bytes == 128 && c.global_store_bytes == 128 && c.global_store_sectors == 4);
  c = count("mad.wide.u32 d0, t, 4, a; ld.global.u32 r0, [d0];", 5);  // all blocks read the same
  CHECK(c.global_load_sectors == 20 && c.unique_load_sectors == 4 && c.launches == 1);
  c = count(
      "mad.wide.u32 d0, t, 16, a; mad.lo.u32 s, t, 16, s; cp.async.cg.shared.global [s], [d0], 16; cp.async.wait_all;");
  CHECK(c.global_load_bytes == 512 && c.global_load_sectors == 16 && c.shared_wavefronts == 4 && c.bank_conflicts == 0);
}

PTX_TEST(counters_instructions) {
  const Counters c = count("setp.lt.u32 p0, t, 8; @p0 bra A; add.u32 r0, r0, 1; A: add.u32 r1, r1, 1;");
  CHECK_EQUAL(c.warp_instructions,
              3u + 2 + 1 + 1 + 1);  // parameter, two moves; setp, bra; the first add; the second; ret
  CHECK_EQUAL(c.thread_instructions, 32u * 3 + 64 + 24 + 32 + 32);
}

// Stride in bytes, size of the access: wavefronts and conflicts.
void check_shared(uint32_t stride, uint32_t bytes, uint64_t wavefronts, uint64_t conflicts) {
  const std::string load = bytes == 1   ? "ld.shared.u8 r0, [s];"
                           : bytes == 4 ? "ld.shared.u32 r0, [s];"
                           : bytes == 8 ? "ld.shared.v2.u32 {r0, r1}, [s];"
                                        : "ld.shared.v4.u32 {r0, r1, r2, r3}, [s];";
  const Counters c = count("mad.lo.u32 s, t, " + std::to_string(stride) + ", s; " + load);
  if (c.shared_wavefronts == wavefronts && c.bank_conflicts == conflicts && c.shared_accesses == 1) return;
  fail(__FILE__, __LINE__,
       "stride " + std::to_string(stride) + ", " + std::to_string(bytes) + " bytes: " +
           std::to_string(c.shared_wavefronts) + " wavefronts, " + std::to_string(c.bank_conflicts) + " conflicts");
}

PTX_TEST(counters_bank_conflicts) {
  check_shared(4, 4, 1, 0);
  check_shared(0, 4, 1, 0);  // one word for all
  check_shared(8, 4, 2, 1);
  check_shared(64, 4, 16, 15);
  check_shared(128, 4, 32, 31);
  check_shared(132, 4, 1, 0);  // a padded column
  check_shared(1, 1, 1, 0);
  check_shared(8, 8, 2, 0);
  check_shared(16, 8, 4, 2);
  check_shared(16, 16, 4, 0);
  check_shared(32, 16, 8, 4);
  check_shared(128, 16, 32, 28);
  check_shared(144, 16, 4, 0);
}

PTX_TEST(counters_ldmatrix) {
  const auto rows = [](uint32_t stride) {
    return count("mad.lo.u32 s, t, " + std::to_string(stride) +
                 ", s; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [s];");
  };
  CHECK(rows(16).shared_wavefronts == 4 && rows(16).bank_conflicts == 0);
  CHECK(rows(144).shared_wavefronts == 4 && rows(144).bank_conflicts == 0);
  CHECK(rows(128).shared_wavefronts == 32 && rows(128).bank_conflicts == 28);
}

}  // namespace
}  // namespace ptxsim::test
