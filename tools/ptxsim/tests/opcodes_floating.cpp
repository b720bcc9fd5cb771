// Floating arithmetic: rounding, NaN, signed zeros, denormals, saturation.
#include <cfenv>
#include <iomanip>

#include "formats.h"
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

const float kNan = std::bit_cast<float>(0x7fffffffu);
const double kNanDouble = std::bit_cast<double>(kNan64);

float nan_as_ptx(float x) { return x != x ? kNan : x; }
double nan_as_ptx(double x) { return x != x ? kNanDouble : x; }
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
float clamped(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

template <class T, class F>
T in_mode(int mode, F f) {
  std::fesetround(mode);
  volatile T result = f();
  std::fesetround(FE_TONEAREST);
  return nan_as_ptx(T{result});
}

template <class T>
void arithmetic(const std::string& type) {
  check_operation<T, T, T>("add.rn." + type, [](T a, T b) { return nan_as_ptx(a + b); });
  check_operation<T, T, T>("sub." + type, [](T a, T b) { return nan_as_ptx(a - b); });
  check_operation<T, T, T>("mul.rn." + type, [](T a, T b) { return nan_as_ptx(a * b); });
  check_operation<T, T, T>("div.rn." + type, [](T a, T b) { return nan_as_ptx(a / b); });
  check_operation<T, T, T, T>("fma.rn." + type, [](T a, T b, T c) { return nan_as_ptx(std::fma(a, b, c)); });
  check_operation<T, T>("sqrt.rn." + type, [](T a) { return nan_as_ptx(std::sqrt(a)); });
  check_operation<T, T>("rcp.rn." + type, [](T a) { return nan_as_ptx(1 / a); });
  check_operation<T, T>("neg." + type, [](T a) { return -a; });
  check_operation<T, T>("abs." + type, [](T a) { return std::fabs(a); });
  check_operation<T, T, T>("copysign." + type, [](T a, T b) { return std::copysign(b, a); });
  constexpr std::pair<const char*, int> kModes[] = {{"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
  for (const auto& [name, mode] : kModes) {
    const std::string suffix = std::string(".") + name + "." + type;
    const int m = mode;
    check_operation<T, T, T>("add" + suffix, [m](T a, T b) {
      volatile T x = a, y = b;
      return in_mode<T>(m, [&] { return x + y; });
    });
    check_operation<T, T, T>("mul" + suffix, [m](T a, T b) {
      volatile T x = a, y = b;
      return in_mode<T>(m, [&] { return x * y; });
    });
    check_operation<T, T, T, T>("fma" + suffix, [m](T a, T b, T c) {
      volatile T x = a, y = b, z = c;
      return in_mode<T>(m, [&] { return std::fma(T{x}, T{y}, T{z}); });
    });
  }
}

PTX_TEST(floating_arithmetic_f32) { arithmetic<float>("f32"); }
PTX_TEST(floating_arithmetic_f64) { arithmetic<double>("f64"); }

PTX_TEST(floating_flush_and_saturate) {
  using F = float;
  check_operation<F, F, F>("add.ftz.f32", [](F a, F b) { return nan_as_ptx(flushed(flushed(a) + flushed(b))); });
  check_operation<F, F, F>("mul.ftz.f32", [](F a, F b) { return nan_as_ptx(flushed(flushed(a) * flushed(b))); });
  check_operation<F, F, F, F>("fma.rn.ftz.f32", [](F a, F b, F c) {
    return nan_as_ptx(flushed(std::fma(flushed(a), flushed(b), flushed(c))));
  });
  check_operation<F, F, F>("add.sat.f32", [](F a, F b) { return clamped(a + b); });
  check_operation<F, F, F>("mul.sat.f32", [](F a, F b) { return clamped(a * b); });
  check_operation<F, F, F, F>("fma.rn.sat.f32", [](F a, F b, F c) { return clamped(std::fma(a, b, c)); });
}

template <class T>
T least(T a, T b) {
  if (a != a) return nan_as_ptx(b);
  if (b != b) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

template <class T>
T greatest(T a, T b) {
  if (a != a) return nan_as_ptx(b);
  if (b != b) return a;
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

PTX_TEST(floating_min_max) {
  check_operation<float, float, float>("min.f32", least<float>);
  check_operation<float, float, float>("max.f32", greatest<float>);
  check_operation<double, double, double>("min.f64", least<double>);
  check_operation<double, double, double>("max.f64", greatest<double>);
  check_operation<float, float, float>("min.NaN.f32",
                                       [](float a, float b) { return a != a || b != b ? kNan : least(a, b); });
  check_operation<float, float, float>("max.NaN.f32",
                                       [](float a, float b) { return a != a || b != b ? kNan : greatest(a, b); });
}

// Halves: every 16-bit pattern goes through f32 and back, and the nearest is found by trying neighbours.
double value_of(Half x) { return to_float(x); }

PTX_TEST(floating_half_conversions) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half h{static_cast<uint16_t>(bits)};
    const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const float f = to_float(h);
    if (exponent == 31) {
      CHECK(mantissa == 0 ? std::isinf(f) : std::isnan(f));
      continue;
    }
    CHECK_EQUAL(f, static_cast<float>(bits & 0x8000 ? -magnitude : magnitude));
    CHECK_EQUAL(to_half(f).bits, h.bits);
    CHECK_EQUAL(to_half(double{f}).bits, h.bits);
    const BFloat16 b{static_cast<uint16_t>(bits)};
    if (to_float(b) == to_float(b)) CHECK_EQUAL(to_bfloat16(to_float(b)).bits, b.bits);
  }
  // Midpoints between neighbours round to the even one; a hair beside them to the near one.
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of({static_cast<uint16_t>(bits)});
    const double high = bits + 1 == 0x7c00 ? 65536.0 : value_of({static_cast<uint16_t>(bits + 1)});
    const float middle = static_cast<float>((low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    CHECK_EQUAL(uint32_t{to_half(middle).bits}, even);
    CHECK_EQUAL(uint32_t{to_half(std::nextafter(middle, 0.0f)).bits}, bits);
    CHECK_EQUAL(uint32_t{to_half(std::nextafter(middle, 1e9f)).bits}, bits + 1);
    CHECK_EQUAL(uint32_t{to_half(double{middle}).bits}, even);
  }
}

// a + b in a 16-bit format, rounded once. a and b are exact; where their sum fits no double, the double is made odd, so
// that it cannot be a midpoint that the exact sum is not.
template <class T>
T nearest(long double a, long double b = -0.0L) {
  const long double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
  double rounded = static_cast<double>(sum);
  if (std::isfinite(rounded)) {
    const long double rest = (sum - rounded) + error;
    const auto bits = std::bit_cast<uint64_t>(rounded);
    if (rest != 0 && (bits & 1) == 0)
      rounded = std::bit_cast<double>((rest > 0) == (rounded > 0) ? bits + 1 : bits - 1);
  }
  if constexpr (std::is_same_v<T, Half>)
    return to_half(rounded);
  else
    return to_bfloat16(rounded);
}

template <class T>
void narrow_arithmetic(const std::string& type) {
  using B = uint16_t;
  const auto wide = [](B x) { return static_cast<long double>(to_float(T{x})); };
  check_operation<B, B, B>("add.rn." + type, [&](B a, B b) { return nearest<T>(wide(a), wide(b)).bits; });
  check_operation<B, B, B>("sub.rn." + type, [&](B a, B b) { return nearest<T>(wide(a), -wide(b)).bits; });
  check_operation<B, B, B>("mul.rn." + type, [&](B a, B b) { return nearest<T>(wide(a) * wide(b)).bits; });
  check_operation<B, B, B, B>("fma.rn." + type,
                              [&](B a, B b, B c) { return nearest<T>(wide(a) * wide(b), wide(c)).bits; });
  check_operation<B, B, B>("max." + type, [&](B a, B b) {
    const float m = greatest(to_float(T{a}), to_float(T{b}));
    return nearest<T>(m).bits;
  });
  using W = uint32_t;
  check_operation<W, W, W, W>("fma.rn." + type + "x2", [&](W a, W b, W c) {
    const auto half = [&](int s) {
      return W{nearest<T>(wide(static_cast<B>(a >> s)) * wide(static_cast<B>(b >> s)), wide(static_cast<B>(c >> s)))
                   .bits}
             << s;
    };
    return half(0) | half(16);
  });
  check_operation<W, W>("neg." + type + "x2", [](W a) { return a ^ 0x80008000u; });
}

PTX_TEST(floating_arithmetic_f16) { narrow_arithmetic<Half>("f16"); }
PTX_TEST(floating_arithmetic_bf16) { narrow_arithmetic<BFloat16>("bf16"); }

// Approximations within 2^-22 relative, and the special values.
std::string literal(double x) {
  std::ostringstream text;
  text << "0f" << std::hex << std::setw(8) << std::setfill('0') << std::bit_cast<uint32_t>(static_cast<float>(x));
  return text.str();
}

void approximate(const std::string& opcode, double (*f)(double), double low, double high, double tolerance) {
  const std::string body = "cvt.rn.f32.u32 f0, %lane; mul.f32 f0, f0, " + literal((high - low) / 31) +
                           "; add.f32 f0, f0, " + literal(low) + "; " + opcode +
                           " f1, f0; st.global.v2.f32 [%out], {f0, f1};";
  const auto results = run_warp(body, 2);
  for (size_t lane = 0; lane < 32; ++lane) {
    const double x = std::bit_cast<float>(results[2 * lane]), y = std::bit_cast<float>(results[2 * lane + 1]),
                 exact = f(x);
    if (!(std::fabs(y - exact) <= tolerance * std::max(std::fabs(exact), 1e-3)))
      fail(__FILE__, __LINE__, opcode + " of " + std::to_string(x) + " is " + std::to_string(y));
  }
}

PTX_TEST(floating_approximations) {
  const double tolerance = std::ldexp(1.0, -22);
  approximate("ex2.approx.f32", [](double x) { return std::exp2(x); }, -30, 30, tolerance);
  approximate("ex2.approx.ftz.f32", [](double x) { return std::exp2(x); }, -0.9, 1.3, tolerance);
  approximate("lg2.approx.f32", [](double x) { return std::log2(x); }, 0.01, 3, tolerance);
  approximate("lg2.approx.ftz.f32", [](double x) { return std::log2(x); }, 5, 1e6, tolerance);
  approximate("rcp.approx.ftz.f32", [](double x) { return 1 / x; }, 0.3, 90, tolerance);
  approximate("rsqrt.approx.f32", [](double x) { return 1 / std::sqrt(x); }, 0.3, 90, tolerance);
  approximate("sqrt.approx.f32", [](double x) { return std::sqrt(x); }, 0.3, 90, tolerance);
  approximate("sin.approx.f32", [](double x) { return std::sin(x); }, -3, 3, 1e-5);
  approximate("cos.approx.f32", [](double x) { return std::cos(x); }, -3, 3, 1e-5);
  approximate("tanh.approx.f32", [](double x) { return std::tanh(x); }, -3, 3, 1e-5);
  using F = float;
  const F infinity = std::numeric_limits<F>::infinity();
  const std::string constants[] = {"0f00000000", "0f80000000", "0f7f800000", "0fff800000",
                                   "0f7fffffff", "0f43960000", "0fc3960000", "0fbf800000"};
  const F exp2_of[] = {1, 1, infinity, 0, kNan, infinity, 0, 0.5f},
          log2_of[] = {-infinity, -infinity, infinity, kNan, kNan, 8.2288187f, kNan, kNan};
  for (size_t i = 0; i < 8; ++i) {
    const auto got = run_warp("mov.f32 f0, " + constants[i] +
                                  "; ex2.approx.f32 f1, f0; lg2.approx.f32 f2, f0; st.global.v2.f32 [%out], {f1, f2};",
                              2);
    CHECK_EQUAL(got[0], std::bit_cast<uint32_t>(exp2_of[i]));
    const F log2 = std::bit_cast<F>(got[1]);
    CHECK(i == 5 ? std::fabs(log2 - log2_of[i]) < 1e-5f : got[1] == std::bit_cast<uint32_t>(log2_of[i]));
  }
  // A denormal result of ex2, and of lg2's argument.
  const auto small = run_warp(
      "mov.f32 f0, 0fc3080000; ex2.approx.f32 f1, f0; ex2.approx.ftz.f32 f2, f0; mov.f32 f0, 0f00000100; "
      "lg2.approx.f32 f3, f0; st.global.v2.f32 [%out], {f1, f2}; st.global.f32 [%out+8], f3;",
      4);
  CHECK_EQUAL(std::bit_cast<F>(small[0]), std::ldexp(1.0f, -136));
  CHECK_EQUAL(std::bit_cast<F>(small[1]), 0.0f);
  CHECK_EQUAL(std::bit_cast<F>(small[2]), -141.0f);
}

PTX_TEST(floating_testp) {
  const char* kinds[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
  const float values[] = {0.0f, 1.0f, 1e-40f, std::numeric_limits<float>::infinity(), kNan};
  const uint32_t expected[] = {0b000101, 0b010101, 0b100101, 0b000110, 0b001000};
  for (size_t v = 0; v < 5; ++v) {
    std::string bits = shown(values[v]).substr(2);
    std::string body = "mov.b32 f0, 0x" + bits + "; mov.u32 r0, 0;\n";
    for (int k = 0; k < 6; ++k)
      body += std::string("testp.") + kinds[k] + ".f32 p0, f0; @p0 or.b32 r0, r0, " + std::to_string(1 << k) + ";\n";
    CHECK_EQUAL(run_warp(body + "st.global.u32 [%out], r0;", 1)[0], expected[v]);
  }
}

}  // namespace
}  // namespace ptxsim::test
