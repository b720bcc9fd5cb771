// cvt: saturation, rounding, NaN, and registers wider than the type.
#include <cfenv>

#include "formats.h"
#include "opcodes_test.h"

namespace ptxsim::test {
namespace {

template <class D, class S>
D clamp_to(S x) {
  const __int128 v = x, low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
  return static_cast<D>(v < low ? low : v > high ? high : v);
}

PTX_TEST(convert_integers) {
  check_operation<int64_t, int32_t>("cvt.s64.s32", [](int32_t a) { return int64_t{a}; });
  check_operation<uint64_t, uint32_t>("cvt.u64.u32", [](uint32_t a) { return uint64_t{a}; });
  check_operation<uint32_t, uint64_t>("cvt.u32.u64", [](uint64_t a) { return static_cast<uint32_t>(a); });
  check_operation<int32_t, int16_t>("cvt.s32.s16", [](int16_t a) { return int32_t{a}; });
  check_operation<uint16_t, uint32_t>("cvt.u16.u32", [](uint32_t a) { return static_cast<uint16_t>(a); });
  check_operation<int16_t, int64_t>("cvt.sat.s16.s64", clamp_to<int16_t, int64_t>);
  check_operation<uint32_t, int32_t>("cvt.sat.u32.s32", clamp_to<uint32_t, int32_t>);
  check_operation<uint16_t, int32_t>("cvt.sat.u16.s32", clamp_to<uint16_t, int32_t>);
  // 8 bits live in wider registers: the value is cut and extended by its sign.
  check_operation<int32_t, int32_t>("cvt.s8.s32", [](int32_t a) { return int32_t{static_cast<int8_t>(a)}; });
  check_operation<uint32_t, uint32_t>("cvt.u8.u32", [](uint32_t a) { return a & 255; });
  check_operation<int32_t, int32_t>("cvt.sat.s8.s32", [](int32_t a) { return int32_t{clamp_to<int8_t>(a)}; });
  check_operation<int32_t, int16_t>("cvt.s32.s8", [](int16_t a) { return int32_t{static_cast<int8_t>(a)}; });
  check_operation<uint32_t, uint32_t>("cvt.u32.u16", [](uint32_t a) { return a & 0xffff; });
}

template <class D, class S>
D to_integer(S x, double (*round)(double)) {
  if (x != x)
    return sizeof(S) == 8 || sizeof(D) == 8 ? static_cast<D>(std::make_unsigned_t<D>{1} << (8 * sizeof(D) - 1)) : D{0};
  const long double v = round(x), low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
  return v < low ? std::numeric_limits<D>::min() : v > high ? std::numeric_limits<D>::max() : static_cast<D>(v);
}

double nearest_even(double x) { return std::nearbyint(x); }
double toward_zero(double x) { return std::trunc(x); }
double down(double x) { return std::floor(x); }
double up(double x) { return std::ceil(x); }

template <class D, class S>
void float_to_integer(const std::string& types) {
  check_operation<D, S>("cvt.rni." + types, [](S x) { return to_integer<D>(x, nearest_even); });
  check_operation<D, S>("cvt.rzi." + types, [](S x) { return to_integer<D>(x, toward_zero); });
  check_operation<D, S>("cvt.rmi." + types, [](S x) { return to_integer<D>(x, down); });
  check_operation<D, S>("cvt.rpi." + types, [](S x) { return to_integer<D>(x, up); });
}

PTX_TEST(convert_floats_to_integers) {
  float_to_integer<int32_t, float>("s32.f32");
  float_to_integer<uint32_t, float>("u32.f32");
  float_to_integer<int64_t, float>("s64.f32");
  float_to_integer<uint64_t, float>("u64.f32");
  float_to_integer<int32_t, double>("s32.f64");
  float_to_integer<uint64_t, double>("u64.f64");
  float_to_integer<int16_t, float>("s16.f32");
  check_operation<int32_t, float>("cvt.rzi.s8.f32",
                                  [](float x) { return int32_t{to_integer<int8_t>(x, toward_zero)}; });
}

template <class D, class S, class F>
D in_mode(int mode, S x, F convert) {
  volatile S value = x;
  std::fesetround(mode);
  volatile D result = convert(S{value});
  std::fesetround(FE_TONEAREST);
  return D{result};
}

PTX_TEST(convert_integers_to_floats) {
  check_operation<float, int32_t>("cvt.rn.f32.s32", [](int32_t a) { return static_cast<float>(a); });
  check_operation<float, uint32_t>("cvt.rn.f32.u32", [](uint32_t a) { return static_cast<float>(a); });
  check_operation<float, uint64_t>("cvt.rn.f32.u64", [](uint64_t a) { return static_cast<float>(a); });
  check_operation<double, int64_t>("cvt.rn.f64.s64", [](int64_t a) { return static_cast<double>(a); });
  check_operation<double, uint32_t>("cvt.rn.f64.u32", [](uint32_t a) { return static_cast<double>(a); });
  check_operation<float, int32_t>("cvt.rz.f32.s32", [](int32_t a) {
    return in_mode<float>(FE_TOWARDZERO, a, [](int32_t x) { return static_cast<float>(x); });
  });
  check_operation<float, int32_t>("cvt.rp.f32.s32", [](int32_t a) {
    return in_mode<float>(FE_UPWARD, a, [](int32_t x) { return static_cast<float>(x); });
  });
  check_operation<uint16_t, int32_t>("cvt.rn.f16.s32", [](int32_t a) { return to_half(static_cast<double>(a)).bits; });
}

float nan_as_ptx(float x) { return x != x ? std::bit_cast<float>(kNan32) : x; }

PTX_TEST(convert_between_floats) {
  check_operation<double, float>("cvt.f64.f32",
                                 [](float a) { return a != a ? std::bit_cast<double>(kNan64) : double{a}; });
  check_operation<float, double>("cvt.rn.f32.f64", [](double a) { return nan_as_ptx(static_cast<float>(a)); });
  check_operation<float, double>("cvt.rm.f32.f64", [](double a) {
    return nan_as_ptx(in_mode<float>(FE_DOWNWARD, a, [](double x) { return static_cast<float>(x); }));
  });
  check_operation<float, float>("cvt.rni.f32.f32", [](float a) { return nan_as_ptx(std::nearbyint(a)); });
  check_operation<float, float>("cvt.rmi.f32.f32", [](float a) { return nan_as_ptx(std::floor(a)); });
  check_operation<float, float>("cvt.sat.f32.f32", [](float a) { return a > 0 ? std::min(a, 1.0f) : 0.0f; });
  check_operation<uint16_t, float>("cvt.rn.f16.f32", [](float a) { return to_half(double{a}).bits; });
  check_operation<uint16_t, float>("cvt.rn.bf16.f32", [](float a) { return to_bfloat16(double{a}).bits; });
  check_operation<uint16_t, float>("cvt.rz.bf16.f32", [](float a) {
    return static_cast<uint16_t>(a != a ? 0x7fff : std::bit_cast<uint32_t>(a) >> 16);
  });
  check_operation<float, uint16_t>("cvt.f32.f16", [](uint16_t a) { return nan_as_ptx(to_float(Half{a})); });
  check_operation<float, uint16_t>("cvt.f32.bf16", [](uint16_t a) { return nan_as_ptx(to_float(BFloat16{a})); });
  check_operation<uint32_t, float, float>("cvt.rn.bf16x2.f32", [](float a, float b) {
    return uint32_t{to_bfloat16(double{a}).bits} << 16 | to_bfloat16(double{b}).bits;
  });
  check_operation<uint32_t, float, float>("cvt.rn.f16x2.f32", [](float a, float b) {
    return uint32_t{to_half(double{a}).bits} << 16 | to_half(double{b}).bits;
  });
  check_operation<uint32_t, float, float>("cvt.rn.relu.f16x2.f32", [](float a, float b) {
    const auto relu = [](float x) { return x != x ? uint16_t{0x7fff} : to_half(x < 0 ? 0.0 : double{x}).bits; };
    return uint32_t{relu(a)} << 16 | relu(b);
  });
  check_operation<uint32_t, float>(
      "cvt.rna.tf32.f32", [](float a) { return a != a ? kNan32 : (std::bit_cast<uint32_t>(a) + 0x1000u) & ~0x1fffu; });
  check_operation<uint32_t, int32_t, int32_t, uint32_t>(
      "cvt.pack.sat.s8.s32.b32", [](int32_t a, int32_t b, uint32_t c) {
        return c << 16 | uint32_t{static_cast<uint8_t>(clamp_to<int8_t>(a))} << 8 |
               static_cast<uint8_t>(clamp_to<int8_t>(b));
      });
}

}  // namespace
}  // namespace ptxsim::test
