// Races and uninitialised reads: programs with one, and their repaired twins.
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

struct Case {
  const char* body;
  const char* kind;
};

const std::string kHead =
    ".reg .b64 a, d<4>; .reg .b32 r<10>, t, s, n; .reg .pred p<6>; .shared .align 16 .b8 buffer[4096]; ld.param.u64 a, "
    "[arg0]; mov.u32 t, %tid.x; mov.u32 s, buffer; mad.lo.u32 s, t, 16, s; xor.b32 n, t, 32; mov.u32 r9, buffer; "
    "mad.lo.u32 n, n, 16, r9; mov.u32 r8, %ctaid.x; cvt.u64.u32 d3, t;\n";

std::string run(const std::string& body, Options options, uint32_t blocks = 1, std::string* message = nullptr) {
  Buffer<uint32_t> memory(std::vector<uint32_t>(512, 0));
  Run run;
  run.block = {64, 1, 1};
  run.grid = {blocks, 1, 1};
  run.options = options;
  return error_kind([&] { run.launch(kernel_text(kHead + body + "\nret;", 1), {address(memory)}); }, message);
}

Options races() {
  Options options;
  options.race = true;
  return options;
}

void check_all(std::initializer_list<Case> cases, uint32_t blocks = 1) {
  for (const Case& c : cases) {
    Options options = races();
    const std::string kind = run(c.body, options, blocks);
    if (kind != c.kind) fail(__FILE__, __LINE__, std::string(c.body) + ": " + kind + ", expected " + c.kind);
    CHECK_EQUAL(run(c.body, {}, blocks), std::string("none"));  // unseen without the checker
  }
}

PTX_TEST(checker_shared_memory_between_warps) {
  check_all({
      {"st.shared.u32 [s], t; ld.shared.u32 r0, [n];", "race"},
      {"st.shared.u32 [s], t; bar.sync 0; ld.shared.u32 r0, [n];", "none"},
      {"st.shared.u32 [s], t; bar.sync 0; ld.shared.u32 r0, [n]; st.shared.u32 [s], r0;", "race"},
      {"st.shared.u32 [s], t; bar.sync 0; ld.shared.u32 r0, [n]; bar.sync 0; st.shared.u32 [s], r0;", "none"},
      // The other thread read before the barrier: only one's own read is left to write after.
      {"st.shared.u32 [s], t; bar.sync 0; ld.shared.u32 r0, [n]; bar.sync 0; ld.shared.u32 r1, [s]; "
       "st.shared.u32 [s], r0;",
       "none"},
      {"st.shared.u32 [s], t; bar.sync 0; ld.shared.u32 r1, [s]; bar.sync 0; ld.shared.u32 r0, [n]; "
       "st.shared.u32 [s], r0;",
       "race"},
      {"st.shared.u32 [buffer], t;", "race"},
      {"atom.shared.add.u32 r0, [buffer], 1;", "none"},
      {"st.shared.u8 [r9+0], t;", "race"},
      {"add.u32 r9, r9, t; st.shared.u8 [r9], t;", "none"},  // neighbours within a word
      {"ld.volatile.shared.u32 r0, [buffer]; st.volatile.shared.u32 [buffer], t;", "none"},
      {"atom.shared.add.u32 r0, [buffer], 1; ld.shared.u32 r1, [buffer];", "race"},
  });
}

PTX_TEST(checker_within_a_warp) {
  const std::string neighbour =
      "xor.b32 r1, t, 1; mov.u32 r2, buffer; mad.lo.u32 r1, r1, 16, r2; st.shared.u32 [s], t; ";
  const auto check = [&](const std::string& between, const char* kind) {
    CHECK_EQUAL(run(neighbour + between + "ld.shared.u32 r3, [r1];", races()), std::string(kind));
  };
  check("", "race");
  check("bar.warp.sync -1; ", "none");
  check("bar.sync 0; ", "none");
  check("shfl.sync.bfly.b32 r4, t, 1, 31, -1; ", "race");  // a shuffle orders no memory
  check("setp.eq.u32 p0, t, 0; vote.sync.any.pred p1, p0, -1; ", "race");
  // ldmatrix reads for other lanes than the one whose row it is.
  const std::string row = "mov.u32 r4, 0; st.shared.v4.u32 [s], {t, t, t, t}; ";
  CHECK_EQUAL(run(row + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [s];", races()),
              std::string("race"));
  CHECK_EQUAL(run(row + "bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [s];", races()),
              std::string("none"));
}

PTX_TEST(checker_named_barriers) {
  // Warp 0 writes, arrives at barrier 1; warp 1 waits there and reads. Through barrier 2, which warp 0 does not know,
  // it would be a race.
  const auto body = [](const std::string& producer, const std::string& consumer) {
    return "setp.ge.u32 p0, t, 32; @p0 bra READ; st.shared.u32 [s], t; " + producer + " bra END; READ: " + consumer +
           " ld.shared.u32 r0, [n]; END:";
  };
  CHECK_EQUAL(run(body("bar.arrive 1, 64;", "bar.sync 1, 64;"), races()), std::string("none"));
  CHECK_EQUAL(run(body("bar.sync 1, 32;", "bar.sync 2, 32;"), races()), std::string("race"));
}

PTX_TEST(checker_async_copies) {
  const std::string copy =
      "cvt.u64.u32 d0, t; mad.wide.u32 d0, t, 16, a; cp.async.cg.shared.global [s], [d0], 16; cp.async.commit_group; ";
  const auto check = [&](const std::string& rest, const char* kind) {
    CHECK_EQUAL(run(copy + rest, races()), std::string(kind));
  };
  check("cp.async.wait_group 0; ld.shared.u32 r0, [s];", "none");
  check("ld.shared.u32 r0, [s]; cp.async.wait_group 0;", "race");  // its own, in flight
  check("bar.sync 0; ld.shared.u32 r0, [n]; cp.async.wait_group 0;", "race");
  check("cp.async.wait_group 0; ld.shared.u32 r0, [n];", "race");  // complete, but not ordered
  check("cp.async.wait_group 0; bar.sync 0; ld.shared.u32 r0, [n];", "none");
  check("bar.sync 0; cp.async.wait_group 0; ld.shared.u32 r0, [n];", "race");  // wait and barrier in the wrong order
  // A stage that is filled again while another warp may still read it.
  check(
      "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 r0, [n]; cp.async.cg.shared.global [s], [d0], 16; "
      "cp.async.wait_all;",
      "race");
  check(
      "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 r0, [n]; bar.sync 0; cp.async.cg.shared.global [s], [d0], 16; "
      "cp.async.wait_all;",
      "none");
}

PTX_TEST(checker_global_memory_between_blocks) {
  check_all(
      {
          {"st.global.u32 [a], t;", "race"},
          {"setp.eq.u32 p0, t, 0; @p0 st.global.u32 [a], t;", "race"},
          {"setp.eq.u32 p0, t, 0; @p0 atom.global.add.u32 r0, [a], 1;", "none"},
          {"setp.eq.u32 p0, t, 0; @p0 red.global.add.u32 [a], 1;", "none"},
          {"mad.lo.u32 r0, r8, 64, t; mad.wide.u32 d0, r0, 4, a; st.global.u32 [d0], t;", "none"},
          {"ld.global.u32 r0, [a];", "none"},
          {"setp.eq.u32 p0, r8, 1; @p0 ld.global.u32 r0, [a]; setp.eq.u32 p1, t, 0; setp.ne.and.u32 p2, r8, 1, p1; @p2 "
           "st.global.u32 [a], t;",
           "race"},
          {"mad.lo.u32 r0, r8, 64, t; mad.wide.u32 d0, r0, 2, a; st.global.u16 [d0], t;", "none"},
      },
      2);
  // The last block adds up what the others wrote: a fence and an atomic before, an atomic after.
  const std::string partial =
      "setp.eq.u32 p0, t, 0; @!p0 bra END; mad.wide.u32 d0, r8, 4, a; st.global.u32 [d0+64], 5; ";
  const std::string last =
      "atom.global.add.u32 r1, [a], 1; setp.ne.u32 p1, r1, 2; @p1 bra END; ld.global.u32 r2, [a+64]; ld.global.u32 r3, "
      "[a+68]; ld.global.u32 r4, [a+72]; END:";
  CHECK_EQUAL(run(partial + "membar.gl; " + last, races(), 3), std::string("none"));
  CHECK_EQUAL(run(partial + last, races(), 3), std::string("race"));
}

PTX_TEST(checker_global_memory_within_a_block) {
  const std::string write =
      "mad.wide.u32 d0, t, 4, a; st.global.u32 [d0], t; xor.b32 r0, t, 32; mad.wide.u32 d1, r0, 4, a; ";
  CHECK_EQUAL(run(write + "ld.global.u32 r1, [d1];", races()), std::string("race"));
  CHECK_EQUAL(run(write + "bar.sync 0; ld.global.u32 r1, [d1];", races()), std::string("none"));
}

PTX_TEST(checker_report) {
  std::string message;
  run("st.shared.u32 [s], t; ld.shared.u32 r0, [n];", races(), 1, &message);
  // Warp 0 runs first: it reads what warp 1 writes after.
  CHECK(message.find("write of shared memory at offset 512 is not ordered after the read by thread 0 ") !=
        std::string::npos);
  CHECK(message.find("thread (32, 0, 0)") != std::string::npos);
  CHECK(message.find("st.shared.u32 [s], t;") != std::string::npos &&
        message.find("ld.shared.u32 r0, [n];") != std::string::npos);
}

PTX_TEST(checker_uninitialised) {
  Options options;
  options.uninitialised = true;
  CHECK_EQUAL(run("ld.shared.u32 r0, [s];", options), std::string("uninitialised"));
  CHECK_EQUAL(run("st.shared.u32 [s], t; ld.shared.u32 r0, [s];", options), std::string("none"));
  CHECK_EQUAL(run("st.shared.u32 [s], t; ld.shared.v2.u32 {r0, r1}, [s];", options), std::string("uninitialised"));
  CHECK_EQUAL(run("ld.shared.u32 r0, [s];", {}), std::string("none"));
  CHECK_EQUAL(run("mad.wide.u32 d0, t, 16, a; cp.async.cg.shared.global [s], [d0], 16; cp.async.wait_all; "
                  "ld.shared.v4.u32 {r0, r1, r2, r3}, [s];",
                  options),
              std::string("none"));
  // A second block does not see what the first wrote.
  CHECK_EQUAL(run("setp.eq.u32 p0, r8, 0; @p0 st.shared.u32 [s], t; ld.shared.u32 r0, [s];", options, 2),
              std::string("uninitialised"));
  const auto global = [&](bool written, const std::string& body) {
    Buffer<uint32_t> memory(64);
    if (written) mark_initialised(memory.data(), 128);
    Run run;
    run.options = options;
    return error_kind([&] {
      run.launch(
          kernel_text(
              ".reg .b64 a; .reg .b32 r, t; ld.param.u64 a, [arg0]; mov.u32 t, %tid.x; mad.wide.u32 a, t, 4, a; " +
                  body + " ret;",
              1),
          {address(memory)});
    });
  };
  CHECK_EQUAL(global(true, "ld.global.u32 r, [a];"), std::string("none"));
  CHECK_EQUAL(global(false, "ld.global.u32 r, [a];"),
              std::string("uninitialised"));  // the memory is new, if its place is not
  CHECK_EQUAL(global(true, "ld.global.u32 r, [a+4];"), std::string("uninitialised"));
  CHECK_EQUAL(global(false, "st.global.u32 [a], t; ld.global.u32 r, [a];"), std::string("none"));
  CHECK_EQUAL(global(false, "atom.global.add.u32 r, [a], 1;"), std::string("uninitialised"));
}

}  // namespace
}  // namespace ptxsim::test
