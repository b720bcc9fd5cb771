// mma.sync against a plain product with the fragments of the PTX ISA, written out here from its text; ldmatrix and
// stmatrix against their definition.
#include <algorithm>
#include <set>

#include "formats.h"
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

struct Place {
  int row, column;
};

// PTX ISA, "Matrix Fragments for mma.m16n8kX": element i of A in a lane, by the size of the elements and the depth.
Place place_a(int bits, int depth, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  if (bits == 16 && depth == 8) return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
  if (bits == 16) return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, thread * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
  if (bits == 32 && depth == 4) return {i == 0 ? group : group + 8, thread};
  if (bits == 32) return {i == 0 || i == 2 ? group : group + 8, i < 2 ? thread : thread + 4};
  if (depth == 16) return {i < 4 ? group : group + 8, thread * 4 + (i & 3)};
  return {i < 4 || (i >= 8 && i < 12) ? group : group + 8, thread * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
}

Place place_b(int bits, int depth, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  if (bits == 16) return {thread * 2 + (i & 1) + (i >= 2 ? 8 : 0), group};
  if (bits == 32) return {i == 0 ? thread : thread + 4, group};
  (void)depth;
  return {thread * 4 + (i & 3) + (i >= 4 ? 16 : 0), group};
}

Place place_c(int lane, int i) { return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)}; }

uint32_t pack(const std::string& type, float value) {
  if (type == "bf16") return to_bfloat16(value).bits;
  if (type == "f16") return to_half(value).bits;
  if (type == "tf32") return std::bit_cast<uint32_t>(value) | 0x1abc;  // the low bits do not count
  return static_cast<uint32_t>(static_cast<int32_t>(value)) & 255;
}

struct Product {
  std::vector<float> a, b, c, d;  // 16 x depth, depth x 8, 16 x 8
  Counters counters;
};

std::string list(const std::string& prefix, int first, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + prefix + std::to_string(first + i);
  return text + "}";
}

// Runs one mma with values drawn by `draw`.
template <class Draw>
Product multiply(const std::string& type_a, const std::string& type_b, int depth, Draw draw) {
  const int bits = type_a == "tf32" ? 32 : type_a.ends_with("16") ? 16 : 8;
  const bool integer = bits == 8;
  const int per_register = 32 / bits, registers_a = 16 * depth / 32 / per_register,
            registers_b = 8 * depth / 32 / per_register;
  Product p{std::vector<float>(static_cast<size_t>(16 * depth)),
            std::vector<float>(static_cast<size_t>(8 * depth)),
            std::vector<float>(128),
            std::vector<float>(128),
            {}};
  for (auto* m : {&p.a, &p.b, &p.c}) std::generate(m->begin(), m->end(), [&] { return draw(m == &p.c); });
  const int total = registers_a + registers_b + 4;
  Buffer<uint32_t> in(std::vector<uint32_t>(static_cast<size_t>(32 * total), 0)), out(128);
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* mine = in.data() + lane * total;
    for (int i = 0; i < registers_a * per_register; ++i) {
      const Place at = place_a(bits, depth, lane, i);
      mine[i / per_register] |= pack(type_a, p.a[static_cast<size_t>(at.row * depth + at.column)])
                                << (bits * (i % per_register) % 32);
    }
    for (int i = 0; i < registers_b * per_register; ++i) {
      const Place at = place_b(bits, depth, lane, i);
      mine[registers_a + i / per_register] |= pack(type_b, p.b[static_cast<size_t>(at.row * 8 + at.column)])
                                              << (bits * (i % per_register) % 32);
    }
    for (int i = 0; i < 4; ++i) {
      const Place at = place_c(lane, i);
      const float c = p.c[static_cast<size_t>(at.row * 8 + at.column)];
      mine[registers_a + registers_b + i] =
          integer ? static_cast<uint32_t>(static_cast<int32_t>(c)) : std::bit_cast<uint32_t>(c);
    }
  }
  std::string body =
      ".reg .b64 i, o; .reg .b32 r<20>, t; ld.param.u64 i, [arg0]; ld.param.u64 o, [arg1]; mov.u32 t, %tid.x; "
      "mad.wide.u32 i, t, " +
      std::to_string(4 * total) + ", i; mad.wide.u32 o, t, 16, o;\n";
  for (int i = 0; i < total; ++i)
    body += "ld.global.b32 r" + std::to_string(i) + ", [i+" + std::to_string(4 * i) + "];\n";
  const std::string sum = integer ? "s32" : "f32", c = list("r", registers_a + registers_b, 4);
  body += "mma.sync.aligned.m16n8k" + std::to_string(depth) + ".row.col." + sum + "." + type_a + "." + type_b + "." +
          sum + " " + c + ", " + list("r", 0, registers_a) + ", " + list("r", registers_a, registers_b) + ", " + c +
          ";\n" + "st.global.v4.b32 [o], " + c + "; ret;";
  Run run;
  run.launch(kernel_text(body, 2), {address(in), address(out)});
  p.counters = run.counters;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Place at = place_c(lane, i);
      const uint32_t bits_of = out[static_cast<size_t>(4 * lane + i)];
      p.d[static_cast<size_t>(at.row * 8 + at.column)] =
          integer ? static_cast<float>(static_cast<int32_t>(bits_of)) : std::bit_cast<float>(bits_of);
    }
  }
  return p;
}

// Small integers: every order of summation is exact.
void check_exact(const std::string& type_a, const std::string& type_b, int depth, int low, int high) {
  std::mt19937 random(5);
  const Product p = multiply(type_a, type_b, depth, [&](bool) {
    return static_cast<float>(static_cast<int>(random() % static_cast<unsigned>(high - low + 1)) + low);
  });
  for (int row = 0; row < 16; ++row) {
    for (int n = 0; n < 8; ++n) {
      float sum = p.c[static_cast<size_t>(row * 8 + n)];
      for (int k = 0; k < depth; ++k)
        sum += p.a[static_cast<size_t>(row * depth + k)] * p.b[static_cast<size_t>(k * 8 + n)];
      if (p.d[static_cast<size_t>(row * 8 + n)] != sum)
        return fail(__FILE__, __LINE__,
                    type_a + " k" + std::to_string(depth) + " at " + std::to_string(row) + ", " + std::to_string(n));
    }
  }
  const std::string name = "mma.m16n8k" + std::to_string(depth) + "." + type_a + (type_a == type_b ? "" : "." + type_b);
  CHECK_EQUAL(p.counters.matrix_instructions.at(name), 1u);
}

PTX_TEST(matrix_products) {
  for (const int depth : {8, 16}) {
    check_exact("bf16", "bf16", depth, -20, 20);
    check_exact("f16", "f16", depth, -20, 20);
  }
  check_exact("tf32", "tf32", 4, -20, 20);
  check_exact("tf32", "tf32", 8, -20, 20);
  for (const int depth : {16, 32}) {
    check_exact("s8", "s8", depth, -128, 127);
    check_exact("u8", "u8", depth, 0, 255);
    check_exact("s8", "u8", depth, 0, 127);
    check_exact("u8", "s8", depth, 0, 127);
  }
}

// The documented orders, bit by bit, and that they differ.
PTX_TEST(matrix_order_of_summation) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](bool c) {
    const float value = normal(random);
    return c ? value : to_float(to_bfloat16(value));
  };
  const auto value = [](const Product& p, int depth, int row, int n, int k) {
    return p.a[static_cast<size_t>(row * depth + k)] * p.b[static_cast<size_t>(k * 8 + n)];
  };
  int differing = 0;
  const Product p16 = multiply("bf16", "bf16", 16, draw), p8 = multiply("bf16", "bf16", 8, draw),
                pt = multiply("tf32", "tf32", 8, draw);
  for (int row = 0; row < 16; ++row) {
    for (int n = 0; n < 8; ++n) {
      const auto at = static_cast<size_t>(row * 8 + n);
      float even = 0, odd = 0, ascending = p16.c[at], from_c = p8.c[at], descending = 0;
      for (int k = 0; k < 16; ++k)
        (k % 2 ? odd : even) += value(p16, 16, row, n, k), ascending += value(p16, 16, row, n, k);
      for (int k = 0; k < 8; ++k) from_c += value(p8, 8, row, n, k);
      for (int k = 7; k >= 0; --k) descending += value(pt, 8, row, n, k);
      CHECK_EQUAL(p16.d[at], (even + odd) + p16.c[at]);
      CHECK_EQUAL(p8.d[at], from_c);
      CHECK_EQUAL(pt.d[at], descending + pt.c[at]);
      differing += p16.d[at] != ascending;
    }
  }
  CHECK(differing > 30);
}

PTX_TEST(matrix_rows_are_independent) {
  std::mt19937 random(3);
  int drawn = 0;
  const auto draw = [&](bool) {
    return ++drawn % 37 == 0 ? std::numeric_limits<float>::infinity() : static_cast<float>(random() % 7);
  };
  const Product p = multiply("bf16", "bf16", 16, draw);
  for (int row = 0; row < 16; ++row) {
    for (int n = 0; n < 8; ++n) {
      double sum = p.c[static_cast<size_t>(row * 8 + n)];
      for (int k = 0; k < 16; ++k)
        sum += double{p.a[static_cast<size_t>(row * 16 + k)]} * p.b[static_cast<size_t>(k * 8 + n)];
      const float d = p.d[static_cast<size_t>(row * 8 + n)];
      CHECK(sum != sum ? std::bit_cast<uint32_t>(d) == kNan32 : d == static_cast<float>(sum));
    }
  }
}

PTX_TEST(matrix_needs_all_lanes) {
  const std::string mma =
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {f0, f1, f2, f3}, {r0, r1}, {r2}, {f0, f1, f2, f3};";
  Run run;
  run.block = {16, 1, 1};
  CHECK_EQUAL(error_kind([&] { run_warp(mma, 1, run); }), std::string("mask"));
  CHECK_EQUAL(error_kind([&] { run_warp("setp.eq.u32 p0, %lane, 3; @p0 exit; " + mma, 1); }), std::string("mask"));
  CHECK_EQUAL(
      error_kind([&] {
        run_warp(
            "mma.sync.aligned.m16n8k99.row.col.f32.bf16.bf16.f32 {f0, f1, f2, f3}, {r0, r1}, {r2}, {f0, f1, f2, f3};",
            1);
      }),
      std::string("unknown-opcode"));
}

// Shared memory holds 32 rows of 8 elements; element (r, c) is 8 r + c. Lane l gives row (5 l + 3) mod 32.
PTX_TEST(matrix_loads) {
  const std::string fill =
      ".shared .align 16 .b8 s[512]; mov.u32 r0, s; mov.u32 r1, 0; shl.b32 r2, %lane, 4; add.u32 r2, r2, r0; shl.b32 "
      "r3, %lane, 3;\n"
      "FILL: add.u32 r4, r3, r1; cvt.u16.u32 h0, r4; shl.b32 r5, r1, 1; add.u32 r5, r5, r2; st.shared.u16 [r5], h0; "
      "add.u32 r1, r1, 1; setp.lt.u32 p0, r1, 8; @p0 bra FILL; bar.sync 0;\n"
      "mad.lo.u32 r1, %lane, 5, 3; and.b32 r1, r1, 31; shl.b32 r1, r1, 4; add.u32 r1, r1, r0; mov.u32 r2, 0; mov.u32 "
      "r3, 0; mov.u32 r4, 0; mov.u32 r5, 0;\n";
  const auto row = [](uint32_t lane) { return (5 * lane + 3) % 32; };
  for (const bool transposed : {false, true}) {
    for (const int count : {1, 2, 4}) {
      const std::string vector = list("r", 2, count);
      const auto got =
          run_warp(fill + "ldmatrix.sync.aligned.m8n8.x" + std::to_string(count) + (transposed ? ".trans" : "") +
                       ".shared.b16 " + vector + ", [r1]; st.global.v4.u32 [%out], {r2, r3, r4, r5};",
                   4);
      for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t m = 0; m < static_cast<uint32_t>(count); ++m) {
          uint32_t expected = 0;
          for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t r = transposed ? lane % 4 * 2 + j : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + j;
            expected |= (8 * row(8 * m + r) + c) << (16 * j);
          }
          CHECK_EQUAL(got[4 * lane + m], expected);
        }
      }
    }
  }
  CHECK_EQUAL(error_kind([&] { run_warp(fill + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r2}, [r1+8];", 1); }),
              std::string("misaligned"));
  CHECK_EQUAL(
      error_kind([&] { run_warp(fill + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r2, r3, r4, r5}, [r1+16];", 1); }),
      std::string("out-of-bounds"));
}

// stmatrix and then ldmatrix give the registers back; movmatrix is a transposition.
PTX_TEST(matrix_stores) {
  for (const std::string trans : {"", ".trans"}) {
    const auto got = run_warp(
        ".shared .align 16 .b8 s[512]; mov.u32 r0, s; mad.lo.u32 r0, %lane, 16, r0; mul.lo.u32 r1, %lane, 0x9e3779b9; "
        "add.u32 r2, r1, 77; add.u32 r3, r2, 0x10001; xor.b32 r4, r1, r2;\n"
        "stmatrix.sync.aligned.m8n8.x4" +
            trans + ".shared.b16 [r0], {r1, r2, r3, r4}; bar.sync 0; ldmatrix.sync.aligned.m8n8.x4" + trans +
            ".shared.b16 {r5, r6, r7, r8}, [r0];\n"
            "xor.b32 r5, r5, r1; xor.b32 r6, r6, r2; xor.b32 r7, r7, r3; xor.b32 r8, r8, r4; or.b32 r5, r5, r6; or.b32 "
            "r7, r7, r8; or.b32 r5, r5, r7;\n"
            "movmatrix.sync.aligned.m8n8.trans.b16 r6, r1; ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {r7}, [r0]; "
            "movmatrix.sync.aligned.m8n8.trans.b16 r8, r6; xor.b32 r8, r8, r1; st.global.v4.u32 [%out], {r5, r6, r7, "
            "r8};",
        4);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      CHECK_EQUAL(got[4 * lane], 0u);
      if (trans.empty()) CHECK_EQUAL(got[4 * lane + 1], got[4 * lane + 2]);
      CHECK_EQUAL(got[4 * lane + 3], 0u);
    }
  }
}

}  // namespace
}  // namespace ptxsim::test
