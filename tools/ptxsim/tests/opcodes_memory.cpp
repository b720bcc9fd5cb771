// ld, st, atomics, address spaces, bounds, alignment, module variables.
#include "formats.h"
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

PTX_TEST(memory_vectors_and_extension) {
  Buffer<uint32_t> in(std::vector<uint32_t>{0x80ff7f01, 0x12345678, 0xfffffffe, 0x9abcdef0, 5, 6, 7, 8});
  Buffer<uint64_t> out(16);
  Run run;
  run.block = {1, 1, 1};
  run.launch(
      kernel_text(
          ".reg .b64 a, o, d<4>; .reg .b32 r<4>; .reg .b16 h<2>; ld.param.u64 a, [arg0]; ld.param.u64 o, [arg1];\n"
          "ld.global.u8 r0, [a+3]; cvt.u64.u32 d0, r0; st.global.u64 [o], d0;\n"
          "ld.global.s8 d0, [a+3]; st.global.u64 [o+8], d0;\n"
          "ld.global.nc.s16 r0, [a+2]; cvt.u64.u32 d0, r0; st.global.u64 [o+16], d0;\n"
          "ld.global.v4.u32 {r0, r1, r2, r3}, [a]; mov.b64 d0, {r1, r3}; st.global.b64 [o+24], d0; "
          "st.volatile.global.v2.b32 [o+32], {r2, r0};\n"
          "ld.global.v2.u64 {d0, d1}, [a+16]; st.v2.b64 [o+40+8], {d1, d0};\n"
          "mov.b32 {h0, h1}, r0; mov.b32 r1, {h1, h0}; cvt.u64.u32 d0, r1; st.global.u64 [o+64], d0;\n"
          "mov.u32 r0, 0x1ff; st.global.u8 [o+72], r0; mov.b64 {r2, r3}, d1; ld.global.L1::no_allocate.L2::128B.v2.f32 "
          "{r0, _}, [a+8]; st.global.u32 [o+76], r0; ret;",
          2),
      {address(in), address(out)});
  CHECK_EQUAL(out[0], 0x80u);
  CHECK_EQUAL(out[1], ~uint64_t{0x7f});
  CHECK_EQUAL(out[2], 0xffff80ffu);
  CHECK_EQUAL(out[3], 0x9abcdef012345678u);
  CHECK_EQUAL(out[4], 0x80ff7f01fffffffeu);
  CHECK_EQUAL(out[6], 0x0000000800000007u);
  CHECK_EQUAL(out[7], 0x0000000600000005u);
  CHECK_EQUAL(out[8], 0x7f0180ffu);
  CHECK_EQUAL(out[9], 0xfffffffeffffffffu);  // the byte 0xff in memory that was 0xff..., then the float's bits
}

PTX_TEST(memory_bounds_and_alignment) {
  Buffer<uint32_t> buffer(std::vector<uint32_t>(32, 1));
  const auto kind = [&](const std::string& body, std::string* message = nullptr) {
    Run run;
    run.dynamic_shared = 128;
    return error_kind(
        [&] {
          run.launch(kernel_text(".reg .b64 a; .reg .b32 r<4>; .reg .pred p; mov.u32 r0, %tid.x; ld.param.u64 a, "
                                 "[arg0]; mad.wide.u32 a, r0, 4, a; shl.b32 r1, r0, 2;\n" +
                                     body + "\nret;",
                                 1, ".extern .shared .align 16 .b8 dynamic[];"),
                     {address(buffer)});
        },
        message);
  };
  std::string message;
  CHECK_EQUAL(kind("ld.global.u32 r2, [a];"), std::string("none"));
  CHECK_EQUAL(kind("ld.global.u32 r2, [a+4];", &message), std::string("out-of-bounds"));
  CHECK(message.find("thread (31, 0, 0)") != std::string::npos);
  CHECK(message.find("offset 128 of a buffer of 128 bytes") != std::string::npos);
  CHECK(message.find("ld.global.u32 r2, [a+4];") != std::string::npos);
  CHECK_EQUAL(kind("st.global.u32 [a+-4], r2;"), std::string("out-of-bounds"));
  CHECK_EQUAL(kind("atom.global.add.u32 r2, [a+4], 1;"), std::string("out-of-bounds"));
  CHECK_EQUAL(kind("setp.lt.u32 p, r0, 31; @p ld.global.u32 r2, [a+4];"), std::string("none"));
  CHECK_EQUAL(kind("ld.global.u32 r2, [a+2];"), std::string("misaligned"));
  CHECK_EQUAL(kind("ld.global.v2.u32 {r2, r3}, [a];"), std::string("misaligned"));
  CHECK_EQUAL(kind("st.shared.u32 [r1], r0; ld.shared.u32 r2, [r1];"), std::string("none"));
  CHECK_EQUAL(kind("st.shared.u32 [r1+4], r0;"), std::string("out-of-bounds"));
  CHECK_EQUAL(kind("ld.shared.u32 r2, [r1+1];"), std::string("misaligned"));
  CHECK_EQUAL(kind("ld.shared.u32 r2, [dynamic+124];"), std::string("none"));
  CHECK_EQUAL(kind(".reg .b64 s; mov.u64 s, dynamic; cvta.shared.u64 s, s; ld.u32 r2, [s+128];"),
              std::string("out-of-bounds"));
  CHECK_EQUAL(kind(".local .align 4 .b8 mine[16]; ld.local.u32 r2, [mine+16];"), std::string("out-of-bounds"));
  CHECK_EQUAL(kind("ld.global.u32 r2, [16];"), std::string("out-of-bounds"));
  // A freed buffer is no buffer.
  void* freed = allocate(64);
  const auto place = reinterpret_cast<uint64_t>(freed);
  CHECK(deallocate(freed) && !deallocate(freed));
  CHECK_EQUAL(error_kind([&] {
                Run().launch(
                    kernel_text(".reg .b64 a; .reg .b32 r; ld.param.u64 a, [arg0]; ld.global.u32 r, [a]; ret;", 1),
                    {place});
              }),
              std::string("out-of-bounds"));
}

PTX_TEST(memory_spaces_through_generic_addresses) {
  const auto got = run_warp(
      ".shared .align 8 .b32 s[32]; .local .align 8 .b8 mine[8]; mov.u32 r1, s; mad.lo.u32 r1, %lane, 4, r1; "
      "st.shared.u32 [r1], %lane;\n"
      "cvt.u64.u32 d0, r1; cvta.shared.u64 d0, d0; mov.u64 d1, mine; cvta.local.u64 d1, d1; add.u32 r2, %lane, 100; "
      "st.local.u32 [mine+4], r2;\n"
      // Even lanes read shared memory, odd ones local memory, with one instruction.
      "and.b32 r3, %lane, 1; setp.eq.u32 p0, r3, 0; add.u64 d1, d1, 4; selp.b64 d2, d0, d1, p0; ld.u32 r4, [d2];\n"
      "isspacep.shared p1, d2; isspacep.local p2, d2; isspacep.global p3, %out; mov.u32 r5, 0; @p1 or.b32 r5, r5, 1; "
      "@p2 or.b32 r5, r5, 2; @p3 or.b32 r5, r5, 4;\n"
      "cvta.to.shared.u64 d3, d0; cvt.u32.u64 r6, d3; sub.u32 r6, r6, r1; st.global.v4.u32 [%out], {r4, r5, r6, r6};",
      4);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    CHECK_EQUAL(got[4 * lane], lane % 2 == 0 ? lane : lane + 100);
    CHECK_EQUAL(got[4 * lane + 1], (lane % 2 == 0 ? 1u : 2u) | 4u);
    CHECK_EQUAL(got[4 * lane + 2], 0u);
  }
}

PTX_TEST(memory_module_variables) {
  const auto module = Module::parse(kernel_text(
      ".reg .b64 a, o, t; .reg .b32 r<4>; ld.param.u64 o, [arg0]; ld.global.u32 r0, [counter]; add.u32 r0, r0, 1; "
      "st.global.u32 [counter], r0;\n"
      "mov.u64 a, table; ld.const.u32 r1, [a+8]; ld.const.u32 r2, [table+12]; ld.global.u64 t, [pointer]; "
      "ld.global.u32 r3, [t]; st.global.v4.u32 [o], {r0, r1, r2, r3}; ret;",
      1,
      ".global .align 4 .u32 counter = 41;\n.const .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 1};\n.global "
      ".align 8 .u64 pointer = generic(table)+4;\n.global .attribute(.managed) .align 4 .u32 managed[2] = {7};"));
  Buffer<uint32_t> out(4);
  const uint64_t parameter = address(out);
  Counters counters;
  const auto launch = [&] { module->launch("k", {}, reinterpret_cast<const std::byte*>(&parameter), {}, counters); };
  launch();
  CHECK_EQUAL(out[0], 42u);
  CHECK_EQUAL(out[1], 0x103u);
  CHECK_EQUAL(out[2], 0u);
  CHECK_EQUAL(out[3], 2u);
  size_t size = 0;
  auto* counter = static_cast<uint32_t*>(module->variable("counter", &size));
  CHECK(counter != nullptr && size == 4 && *counter == 42);
  launch();
  CHECK_EQUAL(*counter, 43u);
  CHECK(module->variable("managed", &size) != nullptr && size == 8);
  CHECK(module->variable("nothing", &size) == nullptr);
}

// Every lane of two warps on one word, and on a word of its own.
PTX_TEST(memory_atomics) {
  Buffer<uint32_t> words(std::vector<uint32_t>{10, 5, 5, 0xf0f0f0f0, 0, 0, 7, 0, 0, 0, 0, 0});
  Buffer<uint64_t> wide(std::vector<uint64_t>{1, 0});
  words[7] = std::bit_cast<uint32_t>(1.5f);
  Run run;
  run.block = {64, 1, 1};
  run.launch(kernel_text(".reg .b64 a, w, d<2>; .reg .b32 r<4>, t; .reg .f32 f; ld.param.u64 a, [arg0]; ld.param.u64 "
                         "w, [arg1]; mov.u32 t, %tid.x;\n"
                         "atom.global.add.u32 r0, [a], 2; neg.s32 r1, t; red.global.min.s32 [a+4], r1; "
                         "red.global.max.u32 [a+8], t; or.b32 r1, t, 0xff; red.global.and.b32 [a+12], r1;\n"
                         "red.or.b32 [a+16], t; red.relaxed.gpu.global.xor.b32 [a+20], t; atom.global.inc.u32 r2, "
                         "[a+24], 9; atom.global.add.f32 f, [a+28], 0f3F000000;\n"
                         "atom.global.cas.b32 r3, [a+32], t, 77; atom.exch.b32 r3, [a+36], t; "
                         "red.global.add.noftz.f16x2 [a+40], 0x3c003800; cvt.u64.u32 d0, t; atom.global.add.u64 d1, "
                         "[w], d0; red.global.max.u64 [w+8], d0; red.global.dec.u32 [a+44], 3; ret;",
                         2),
             {address(words), address(wide)});
  CHECK_EQUAL(words[0], 138u);
  CHECK_EQUAL(words[1], static_cast<uint32_t>(-63));
  CHECK_EQUAL(words[2], 63u);
  CHECK_EQUAL(words[3], 0xf0u);
  CHECK_EQUAL(words[4], 63u);
  CHECK_EQUAL(words[5], 0u);
  CHECK_EQUAL(words[6], 1u);  // 7, 8, 9, then 0..9 in turns: (7 + 64) mod 10
  CHECK_EQUAL(std::bit_cast<float>(words[7]), 33.5f);
  CHECK_EQUAL(words[8], 77u);
  CHECK_EQUAL(words[9], 63u);
  CHECK_EQUAL(words[10], 0x54005000u);  // 64 and 32 as halves
  CHECK_EQUAL(words[11], 0u);           // 0 -> 3 -> 2 -> 1 -> 0, 16 times
  CHECK_EQUAL(wide[0], 2017u);
  CHECK_EQUAL(wide[1], 63u);
  // On shared memory, with the old values: each lane takes a number of its own.
  const auto got = run_warp(
      ".shared .align 4 .b32 s; setp.eq.u32 p0, %lane, 0; @p0 st.shared.u32 [s], 5; bar.warp.sync -1; "
      "atom.shared.add.u32 r0, [s], 1; bar.warp.sync -1; ld.shared.u32 r1, [s]; st.global.v2.u32 [%out], {r0, r1};",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(got[2 * lane] == 5 + lane && got[2 * lane + 1] == 37);
}

PTX_TEST(memory_allocation) {
  const size_t before = allocated_bytes();
  auto* a = static_cast<unsigned char*>(allocate(1000));
  CHECK(a != nullptr && a[0] == 0xff && a[999] == 0xff && is_device_pointer(a) &&
        reinterpret_cast<uintptr_t>(a) % 256 == 0);
  CHECK_EQUAL(allocated_bytes(), before + 1000);
  auto* b = static_cast<unsigned char*>(allocate(0));
  CHECK(b != nullptr && b != a);
  a[5] = 1;
  CHECK(!deallocate(a + 1) && deallocate(a) && deallocate(b));
  CHECK_EQUAL(allocated_bytes(), before);
  auto* c = static_cast<unsigned char*>(allocate(1000));
  CHECK(c[5] == 0xff);
  CHECK(deallocate(c));
  CHECK(allocate(size_t{1} << 50) == nullptr);
  int local = 0;
  CHECK(!is_device_pointer(&local) && !deallocate(&local));
}

}  // namespace
}  // namespace ptxsim::test
