// ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh.
//
// A GPU's approx forms err by a few units in the last place, in a way of their own; these err by less and otherwise. So
// results agree to a tolerance, never bit by bit. All but sin, cos and tanh use operations that IEEE 754 rounds
// exactly, which makes their bits the same on every host.
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

// 2^f for |f| <= 1/2 by its Taylor series, error below 1e-8; 2^n by two products, so that denormal results come out.
float exp2_approx(float x) {
  const float limited = x < -160.0f ? -160.0f : x > 160.0f ? 160.0f : x;
  const float whole = (limited + 0x1.8p23f) - 0x1.8p23f;  // to the nearest integer
  const float f = limited - whole;
  float sum = 1.5252734e-5f;
  sum = std::fma(sum, f, 1.5403530e-4f);
  sum = std::fma(sum, f, 1.3333558e-3f);
  sum = std::fma(sum, f, 9.6181291e-3f);
  sum = std::fma(sum, f, 5.5504109e-2f);
  sum = std::fma(sum, f, 2.4022651e-1f);
  sum = std::fma(sum, f, 6.9314718e-1f);
  sum = std::fma(sum, f, 1.0f);
  const int32_t n = static_cast<int32_t>(whole), half = n >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23), second = std::bit_cast<float>((n - half + 127) << 23);
  return x != x ? std::bit_cast<float>(kNan32) : sum * first * second;
}

// log2(m 2^e) = e + 2/ln 2 atanh((m - 1) / (m + 1)) with m between sqrt(1/2) and sqrt(2).
float log2_approx(float x) {
  const bool tiny = x < 0x1p-126f;
  const float scaled = tiny ? x * 0x1p24f : x;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);  // the bits of sqrt(1/2) are 0x3f3504f3
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23));
  const float s = (m - 1.0f) / (m + 1.0f), square = s * s;
  float sum = 0.32059885f;  // 2 / (9 ln 2)
  sum = std::fma(sum, square, 0.41219859f);
  sum = std::fma(sum, square, 0.57707802f);
  sum = std::fma(sum, square, 0.96179669f);
  sum = std::fma(sum, square, 2.8853900f);
  const float result = std::fma(sum, s, static_cast<float>(exponent - (tiny ? 24 : 0)));
  const float infinity = std::numeric_limits<float>::infinity();
  const float special = x == 0.0f ? -infinity : x == infinity ? infinity : std::bit_cast<float>(kNan32);
  return x > 0.0f && x < infinity ? result : special;
}

float reciprocal(float x) { return 1.0f / x; }
float reciprocal_root(float x) { return 1.0f / std::sqrt(x); }
float root(float x) { return std::sqrt(x); }
float sine(float x) { return std::sin(x); }
float cosine(float x) { return std::cos(x); }
float hyperbolic_tangent(float x) { return std::tanh(x); }

template <auto F, bool kFlush>
float single(float x) {
  return flush<kFlush>(canonical(F(flush<kFlush>(x))));
}

template <auto F, class T>
T narrow(T x) {
  const float result = F(to_float(x));
  if constexpr (std::is_same_v<T, Half>)
    return to_half(result);
  else
    return to_bfloat16(result);
}

template <auto F, class T>
uint32_t narrow_pair(uint32_t x) {
  const uint32_t low = narrow<F>(T{static_cast<uint16_t>(x)}).bits,
                 high = narrow<F>(T{static_cast<uint16_t>(x >> 16)}).bits;
  return low | high << 16;
}

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 give the upper half of the result; the lower is zero.
double upper_half(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(canonical(x)) & 0xffffffff00000000u);
}

template <auto F, auto G>
void decode_unary(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const std::string mode = modifiers.take_any({"approx", "rn", "rz", "rm", "rp"});
  if (mode != "approx" && mode != "rn") decoder.unknown();
  const bool ftz = modifiers.take("ftz");
  const std::string type = modifiers.take_type();
  Execute execute = nullptr;
  if (type == "f32") execute = ftz ? map<single<F, true>, float, float> : map<single<F, false>, float, float>;
  if (type == "f16") execute = map<narrow<F, Half>, Half, Half>;
  if (type == "bf16") execute = map<narrow<F, BFloat16>, BFloat16, BFloat16>;
  if (type == "f16x2") execute = map<narrow_pair<F, Half>, uint32_t, uint32_t>;
  if (type == "bf16x2") execute = map<narrow_pair<F, BFloat16>, uint32_t, uint32_t>;
  if constexpr (!std::is_same_v<decltype(G), std::nullptr_t>) {
    if (type == "f64") {
      execute = mode == "approx" ? Execute(map<[](double x) { return upper_half(G(x)); }, double, double>)
                                 : map<[](double x) { return canonical(G(x)); }, double, double>;
    }
  }
  if (execute == nullptr) decoder.unknown();
  emit_uniform(decoder, execute, type_bytes(type), 2);
}

}  // namespace

void add_math_opcodes(OpcodeTable& table) {
  table["ex2"] = decode_unary<exp2_approx, nullptr>;
  table["lg2"] = decode_unary<log2_approx, nullptr>;
  table["rcp"] = decode_unary<reciprocal, [](double x) { return 1.0 / x; }>;
  table["rsqrt"] = decode_unary<reciprocal_root, [](double x) { return 1.0 / std::sqrt(x); }>;
  table["sqrt"] = decode_unary<root, [](double x) { return std::sqrt(x); }>;
  table["sin"] = decode_unary<sine, nullptr>;
  table["cos"] = decode_unary<cosine, nullptr>;
  table["tanh"] = decode_unary<hyperbolic_tangent, nullptr>;
}

}  // namespace ptxsim
