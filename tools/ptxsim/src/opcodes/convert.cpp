// cvt.
#include <cfenv>
#include <type_traits>

#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

template <class T>
constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsNarrowFloat<T>;

// Instruction::mode of a conversion.
struct Conversion {
  Rounding rounding = Rounding::kNearest;
  bool to_integral = false;  // rni, rzi, rmi, rpi
  bool saturate = false, flush = false, relu = false, finite = false;

  uint32_t packed() const {
    return static_cast<uint32_t>(rounding) | uint32_t{to_integral} << 4 | uint32_t{saturate} << 5 |
           uint32_t{flush} << 6 | uint32_t{relu} << 7 | uint32_t{finite} << 8;
  }
  static Conversion of(uint32_t mode) {
    return {static_cast<Rounding>(mode & 15),
            (mode >> 4 & 1) != 0,
            (mode >> 5 & 1) != 0,
            (mode >> 6 & 1) != 0,
            (mode >> 7 & 1) != 0,
            (mode >> 8 & 1) != 0};
  }
  bool plain() const {
    return rounding == Rounding::kNearest && !to_integral && !saturate && !flush && !relu && !finite;
  }
};

template <class D, class S>
D clamp_integer(S x) {
  const __int128 value = x;
  const __int128 low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
  return static_cast<D>(value < low ? low : value > high ? high : value);
}

// Values beyond the range are clamped. NaN gives 0, but from f64 or to 64 bits the value with the top bit alone.
template <class D, class S>
D float_to_integer(S x, Rounding rounding) {
  if (x != x)
    return sizeof(S) == 8 || sizeof(D) == 8 ? static_cast<D>(std::make_unsigned_t<D>{1} << (8 * sizeof(D) - 1)) : D{0};
  const double value = round_integer(x, rounding);
  const double limit = std::ldexp(1.0, static_cast<int>(8 * sizeof(D)) - (std::is_signed_v<D> ? 1 : 0));
  if (value >= limit) return std::numeric_limits<D>::max();
  if (value <= (std::is_signed_v<D> ? -limit : 0.0)) return std::numeric_limits<D>::min();
  return static_cast<D>(value);
}

// To f32 or f64 in a rounding mode of the host.
template <class D, class S>
D round_by_host(S x, Rounding rounding) {
  if (rounding == Rounding::kNearest) return static_cast<D>(x);
  const int before = std::fegetround();
  std::fesetround(rounding == Rounding::kZero ? FE_TOWARDZERO : rounding == Rounding::kDown ? FE_DOWNWARD : FE_UPWARD);
  volatile S value = x;
  volatile D result = static_cast<D>(S{value});
  std::fesetround(before);
  return result;
}

template <class T>
auto wide_value(T x) {
  if constexpr (kIsNarrowFloat<T>)
    return to_float(x);
  else
    return x;
}

template <class D, class Wide>
D to_narrow(Wide x, const Conversion& c) {
  double value = static_cast<double>(x);
  if (c.relu && value < 0) value = 0;
  if (c.relu && value != value) return {kNan16};
  if constexpr (std::is_same_v<D, Half>) {
    const Half result = to_half(value, c.rounding);
    return c.finite && (result.bits & 0x7fff) == 0x7c00 ? Half{static_cast<uint16_t>(result.bits - 1)} : result;
  } else {
    const BFloat16 result = to_bfloat16(value, c.rounding);
    return c.finite && (result.bits & 0x7fff) == 0x7f80 ? BFloat16{static_cast<uint16_t>(result.bits - 1)} : result;
  }
}

template <class D, class S>
D convert(S source, const Conversion& c) {
  auto x = wide_value(source);
  using X = decltype(x);
  if constexpr (std::is_same_v<X, float>) {
    if (c.flush) x = flush<true>(x);
  }
  if constexpr (!kIsFloat<D> && !kIsFloat<S>) {
    return c.saturate ? clamp_integer<D>(x) : static_cast<D>(x);
  } else if constexpr (!kIsFloat<D>) {
    return float_to_integer<D>(x, c.rounding);
  } else {
    if constexpr (kIsFloat<S>) {
      if (c.to_integral) x = static_cast<X>(round_integer(x, c.rounding));
      if (c.saturate) x = saturate(x);
    }
    if constexpr (kIsNarrowFloat<D>) {
      return to_narrow<D>(x, c);
    } else {
      D result = round_by_host<D>(x, c.to_integral ? Rounding::kNearest : c.rounding);
      if constexpr (std::is_same_v<D, float>) {
        if (c.flush) result = flush<true>(result);
      }
      if (c.saturate) result = saturate(result);
      return canonical(result);
    }
  }
}

template <class D, class S>
void convert_lanes(Warp& warp, const Instruction& instruction, Mask mask) {
  D* d = warp.lanes<D>(instruction.operand[0]);
  const S* a = warp.lanes<S>(instruction.operand[1]);
  const Conversion conversion = Conversion::of(instruction.mode);
  for_lanes(mask, [&](int lane) { d[lane] = convert<D>(a[lane], conversion); });
}

// The conversions that kernels do most, as vector loops.
template <class D, class S>
Execute fast_instance(const Conversion& c) {
  const bool plain = c.plain();
  if constexpr (!kIsFloat<D> && !kIsFloat<S>) {
    if (!c.saturate) return map<[](S a) { return static_cast<D>(a); }, D, S>;
  } else if constexpr (std::is_same_v<D, float> && kIsNarrowFloat<S>) {
    if (plain) return map<[](S a) { return canonical(to_float(a)); }, float, S>;
  } else if constexpr (std::is_same_v<D, float> && std::is_integral_v<S>) {
    if (plain) return map<[](S a) { return static_cast<float>(a); }, float, S>;
  } else if constexpr (std::is_same_v<D, Half> && std::is_same_v<S, float>) {
    if (plain) return map<[](float a) { return to_half(a); }, Half, float>;
  } else if constexpr (std::is_same_v<D, BFloat16> && std::is_same_v<S, float>) {
    if (plain) return map<[](float a) { return to_bfloat16(a); }, BFloat16, float>;
  }
  return nullptr;
}

template <class D, class S>
Execute instance(const Conversion& conversion) {
  const Execute fast = fast_instance<D, S>(conversion);
  return fast != nullptr ? fast : convert_lanes<D, S>;
}

template <class D>
Execute from(Decoder& decoder, const std::string& source, const Conversion& c) {
  if (source == "u8") return instance<D, uint8_t>(c);
  if (source == "s8") return instance<D, int8_t>(c);
  if (source == "u16") return instance<D, uint16_t>(c);
  if (source == "s16") return instance<D, int16_t>(c);
  if (source == "u32") return instance<D, uint32_t>(c);
  if (source == "s32") return instance<D, int32_t>(c);
  if (source == "u64") return instance<D, uint64_t>(c);
  if (source == "s64") return instance<D, int64_t>(c);
  if (source == "f16") return instance<D, Half>(c);
  if (source == "bf16") return instance<D, BFloat16>(c);
  if (source == "f32") return instance<D, float>(c);
  if (source == "f64") return instance<D, double>(c);
  decoder.unknown();
}

Execute conversion_instance(Decoder& decoder, const std::string& to, const std::string& source, const Conversion& c) {
  if (to == "u8") return from<uint8_t>(decoder, source, c);
  if (to == "s8") return from<int8_t>(decoder, source, c);
  if (to == "u16") return from<uint16_t>(decoder, source, c);
  if (to == "s16") return from<int16_t>(decoder, source, c);
  if (to == "u32") return from<uint32_t>(decoder, source, c);
  if (to == "s32") return from<int32_t>(decoder, source, c);
  if (to == "u64") return from<uint64_t>(decoder, source, c);
  if (to == "s64") return from<int64_t>(decoder, source, c);
  if (to == "f16") return from<Half>(decoder, source, c);
  if (to == "bf16") return from<BFloat16>(decoder, source, c);
  if (to == "f32") return from<float>(decoder, source, c);
  if (to == "f64") return from<double>(decoder, source, c);
  decoder.unknown();
}

// cvt.rn.f16x2.f32 d, a, b: a becomes the upper half.
template <class T>
void convert_pair(Warp& warp, const Instruction& instruction, Mask mask) {
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  const float *a = warp.lanes<float>(instruction.operand[1]), *b = warp.lanes<float>(instruction.operand[2]);
  const Conversion c = Conversion::of(instruction.mode);
  for_lanes(mask,
            [&](int lane) { d[lane] = uint32_t{convert<T>(a[lane], c).bits} << 16 | convert<T>(b[lane], c).bits; });
}

uint32_t bfloat16_pair(float high, float low) { return uint32_t{to_bfloat16(high).bits} << 16 | to_bfloat16(low).bits; }
uint32_t half_pair(float high, float low) { return uint32_t{to_half(high).bits} << 16 | to_half(low).bits; }

void decode_pair(Decoder& decoder, const std::string& to, const Conversion& c) {
  Execute execute = to == "f16x2" ? convert_pair<Half> : convert_pair<BFloat16>;
  if (c.plain())
    execute =
        to == "f16x2" ? Execute(map<half_pair, uint32_t, float, float>) : map<bfloat16_pair, uint32_t, float, float>;
  const uint32_t d = decoder.destination(0, 4), a = decoder.source(1, 4), b = decoder.source(2, 4);
  decoder.emit(execute, {d, a, b}).mode = c.packed();
}

// tf32 keeps 10 bits of the mantissa; rna: ties away from zero.
uint32_t tf32_away(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return x != x ? kNan32 : (bits + 0x1000u) & ~0x1fffu;
}
uint32_t tf32_even(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return x != x ? kNan32 : (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
}

// cvt.pack.sat.{u8,s8}.s32.b32 d, a, b, c: the saturated bytes of b and a below the lower half of c.
template <class T>
uint32_t pack_bytes(int32_t a, int32_t b, uint32_t c) {
  const auto high = static_cast<uint8_t>(clamp_integer<T>(a)), low = static_cast<uint8_t>(clamp_integer<T>(b));
  return c << 16 | uint32_t{high} << 8 | low;
}

void decode_pack(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const std::string to = modifiers.take_type(), source = modifiers.take_type();
  if (!modifiers.take("sat") || (to != "u8" && to != "s8") || source != "s32") decoder.unknown();
  modifiers.take("b32");
  emit_uniform(decoder,
               to == "u8" ? map<pack_bytes<uint8_t>, uint32_t, int32_t, int32_t, uint32_t>
                          : map<pack_bytes<int8_t>, uint32_t, int32_t, int32_t, uint32_t>,
               4, 4);
}

Conversion take_conversion(Modifiers& modifiers) {
  Conversion c;
  const std::string mode = modifiers.take_any({"rni", "rzi", "rmi", "rpi", "rna", "rn", "rz", "rm", "rp"});
  c.to_integral = mode.ends_with('i');
  c.rounding = mode.starts_with("rz")   ? Rounding::kZero
               : mode.starts_with("rm") ? Rounding::kDown
               : mode.starts_with("rp") ? Rounding::kUp
               : mode == "rna"          ? Rounding::kNearestAway
                                        : Rounding::kNearest;
  c.relu = modifiers.take("relu");
  c.finite = modifiers.take("satfinite");
  c.flush = modifiers.take("ftz");
  c.saturate = modifiers.take("sat");
  return c;
}

void decode_cvt(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  if (modifiers.take("pack")) return decode_pack(decoder);
  const Conversion c = take_conversion(modifiers);
  const std::string to = modifiers.take_type(), source = modifiers.take_type();
  if (to == "f16x2" || to == "bf16x2") {
    if (source != "f32") decoder.unknown();
    return decode_pair(decoder, to, c);
  }
  if (to == "tf32") {
    if (source != "f32" || c.relu || c.finite) decoder.unknown();
    return emit_uniform(
        decoder,
        c.rounding == Rounding::kNearestAway ? map<tf32_away, uint32_t, float> : map<tf32_even, uint32_t, float>, 4, 2);
  }
  const uint32_t bytes = type_bytes(to), source_bytes = type_bytes(source);
  const Execute execute = conversion_instance(decoder, to, source, c);
  const bool sign = to[0] == 's';
  const uint32_t a = decoder.wide_source(decoder.operand(1), source_bytes);
  const uint32_t d = decoder.wide_destination(decoder.operand(0), bytes, sign);
  decoder.emit(execute, {d, a}).mode = c.packed();
}

}  // namespace

void add_convert_opcodes(OpcodeTable& table) { table["cvt"] = decode_cvt; }

}  // namespace ptxsim
