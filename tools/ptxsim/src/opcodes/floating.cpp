// Floating arithmetic: add, sub, mul, fma, mad, div, min, max, neg, abs, copysign, testp in all formats.
//
// f32 and f64 round once, to nearest by default; the other rounding modes set the mode of the host's unit around a
// loop. f16 and bf16 compute in double, which holds sums and products of them well enough to round once at the end.
#include <cfenv>

#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

struct Add {
  template <class T>
  static T run(T a, T b) {
    return a + b;
  }
};
struct Subtract {
  template <class T>
  static T run(T a, T b) {
    return a - b;
  }
};
struct Multiply {
  template <class T>
  static T run(T a, T b) {
    return a * b;
  }
};
struct Divide {
  template <class T>
  static T run(T a, T b) {
    return a / b;
  }
};
struct Minimum {
  template <class T>
  static T run(T a, T b) {
    return minimum(a, b);
  }
};
struct Maximum {
  template <class T>
  static T run(T a, T b) {
    return maximum(a, b);
  }
};
struct MinimumNan {
  template <class T>
  static T run(T a, T b) {
    return a != a || b != b ? canonical(a + b) : minimum(a, b);
  }
};
struct MaximumNan {
  template <class T>
  static T run(T a, T b) {
    return a != a || b != b ? canonical(a + b) : maximum(a, b);
  }
};

template <class Op, bool kFlush, bool kSaturate>
float binary32(float a, float b) {
  const float result = flush<kFlush>(canonical(Op::run(flush<kFlush>(a), flush<kFlush>(b))));
  return kSaturate ? saturate(result) : result;
}

template <bool kFlush, bool kSaturate>
float fused32(float a, float b, float c) {
  const float result = flush<kFlush>(canonical(std::fma(flush<kFlush>(a), flush<kFlush>(b), flush<kFlush>(c))));
  return kSaturate ? saturate(result) : result;
}

// Sets the host's rounding mode for the length of a scope. The loops within go through volatile values, or the compiler
// would move arithmetic out of the scope.
class RoundingScope {
 public:
  explicit RoundingScope(uint32_t mode) : before_(std::fegetround()) {
    constexpr int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    std::fesetround(modes[mode]);
  }
  ~RoundingScope() { std::fesetround(before_); }

 private:
  int before_;
};

template <class Op, class T>
void directed_binary(Warp& warp, const Instruction& instruction, Mask mask) {
  T* d = warp.lanes<T>(instruction.operand[0]);
  const T *a = warp.lanes<T>(instruction.operand[1]), *b = warp.lanes<T>(instruction.operand[2]);
  const RoundingScope scope(instruction.mode);
  for_lanes(mask, [&](int lane) {
    volatile T x = a[lane], y = b[lane];
    volatile T result = Op::run(T{x}, T{y});
    d[lane] = canonical(T{result});
    if (instruction.mode2) d[lane] = saturate(d[lane]);
  });
}

template <class T>
void directed_fused(Warp& warp, const Instruction& instruction, Mask mask) {
  T* d = warp.lanes<T>(instruction.operand[0]);
  const T *a = warp.lanes<T>(instruction.operand[1]), *b = warp.lanes<T>(instruction.operand[2]),
          *c = warp.lanes<T>(instruction.operand[3]);
  const RoundingScope scope(instruction.mode);
  for_lanes(mask, [&](int lane) {
    volatile T x = a[lane], y = b[lane], z = c[lane];
    volatile T result = std::fma(T{x}, T{y}, T{z});
    d[lane] = canonical(T{result});
    if (instruction.mode2) d[lane] = saturate(d[lane]);
  });
}

double widen(Half x) { return to_float(x); }
double widen(BFloat16 x) { return to_float(x); }

template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, Half>)
    return to_half(x);
  else
    return to_bfloat16(x);
}

template <class Op, class T, bool kSaturate>
T binary16(T a, T b) {
  const double result = Op::run(widen(a), widen(b));
  return narrow<T>(kSaturate ? saturate(result) : result);
}

enum class Finish { kNone, kSaturate, kRelu };

template <class T, Finish kFinish>
T fused16(T a, T b, T c) {
  double result = fused_for_narrow(widen(a), widen(b), widen(c));
  if (kFinish == Finish::kSaturate) result = saturate(result);
  if (kFinish == Finish::kRelu) result = result < 0 ? 0 : result;
  return narrow<T>(result);
}

// The two halves of a packed register, one after the other.
template <class T, auto F, class... Packed>
uint32_t in_halves(Packed... values) {
  const uint32_t low = F(T{static_cast<uint16_t>(values)}...).bits;
  const uint32_t high = F(T{static_cast<uint16_t>(values >> 16)}...).bits;
  return low | high << 16;
}

template <class Op, bool kSaturate>
Execute narrow_binary(const std::string& type) {
  using U = uint32_t;
  if (type == "f16") return map<binary16<Op, Half, kSaturate>, Half, Half, Half>;
  if (type == "bf16") return map<binary16<Op, BFloat16, kSaturate>, BFloat16, BFloat16, BFloat16>;
  if (type == "f16x2") return map<in_halves<Half, binary16<Op, Half, kSaturate>, U, U>, U, U, U>;
  if (type == "bf16x2") return map<in_halves<BFloat16, binary16<Op, BFloat16, kSaturate>, U, U>, U, U, U>;
  return nullptr;
}

template <Finish kFinish>
Execute narrow_fused(const std::string& type) {
  using U = uint32_t;
  if (type == "f16") return map<fused16<Half, kFinish>, Half, Half, Half, Half>;
  if (type == "bf16") return map<fused16<BFloat16, kFinish>, BFloat16, BFloat16, BFloat16, BFloat16>;
  if (type == "f16x2") return map<in_halves<Half, fused16<Half, kFinish>, U, U, U>, U, U, U, U>;
  if (type == "bf16x2") return map<in_halves<BFloat16, fused16<BFloat16, kFinish>, U, U, U>, U, U, U, U>;
  return nullptr;
}

struct FloatOptions {
  uint32_t rounding = 0;  // index for RoundingScope
  bool flush = false, saturate = false;
  std::string type;
};

FloatOptions take_options(Decoder& decoder) {
  FloatOptions options;
  Modifiers& modifiers = decoder.modifiers();
  const std::string mode = modifiers.take_any({"rn", "rz", "rm", "rp"});
  options.rounding = mode == "rz" ? 1 : mode == "rm" ? 2 : mode == "rp" ? 3 : 0;
  options.flush = modifiers.take("ftz");
  options.saturate = modifiers.take("sat");
  options.type = modifiers.take_type();
  return options;
}

template <class Op>
Execute binary_instance(Decoder& decoder, const FloatOptions& options) {
  if (options.type == "f64")
    return options.rounding ? Execute(directed_binary<Op, double>)
                            : map<[](double a, double b) { return canonical(Op::run(a, b)); }, double, double, double>;
  if (options.type == "f32") {
    if (options.rounding) {
      if (options.flush) decoder.unknown();
      return directed_binary<Op, float>;
    }
    if (options.flush)
      return options.saturate ? map<binary32<Op, true, true>, float, float, float>
                              : map<binary32<Op, true, false>, float, float, float>;
    return options.saturate ? map<binary32<Op, false, true>, float, float, float>
                            : map<binary32<Op, false, false>, float, float, float>;
  }
  if (options.rounding) decoder.unknown();
  const Execute execute =
      options.saturate ? narrow_binary<Op, true>(options.type) : narrow_binary<Op, false>(options.type);
  if (execute == nullptr) decoder.unknown();
  return execute;
}

template <class Op>
void decode_binary(Decoder& decoder) {
  const FloatOptions options = take_options(decoder);
  const Execute execute = binary_instance<Op>(decoder, options);
  emit_uniform(decoder, execute, type_bytes(options.type), 3);
  if (!options.rounding) return;
  decoder.last().mode = options.rounding;
  decoder.last().mode2 = options.saturate;
}

void decode_fused(Decoder& decoder) {
  const bool relu = decoder.modifiers().take("relu");
  const FloatOptions options = take_options(decoder);
  Execute execute = nullptr;
  if (options.type == "f64") {
    execute = options.rounding ? Execute(directed_fused<double>)
                               : map<[](double a, double b, double c) { return canonical(std::fma(a, b, c)); }, double,
                                     double, double, double>;
  } else if (options.type == "f32") {
    if (options.rounding && !options.flush)
      execute = directed_fused<float>;
    else if (options.flush)
      execute = options.saturate ? map<fused32<true, true>, float, float, float, float>
                                 : map<fused32<true, false>, float, float, float, float>;
    else
      execute = options.saturate ? map<fused32<false, true>, float, float, float, float>
                                 : map<fused32<false, false>, float, float, float, float>;
  } else {
    execute = relu               ? narrow_fused<Finish::kRelu>(options.type)
              : options.saturate ? narrow_fused<Finish::kSaturate>(options.type)
                                 : narrow_fused<Finish::kNone>(options.type);
  }
  if (execute == nullptr) decoder.unknown();
  emit_uniform(decoder, execute, type_bytes(options.type), 4);
  decoder.last().mode = options.rounding;
  decoder.last().mode2 = options.saturate;
}

// div.approx and div.full may err in the last places; here they are as exact as div.rn.
void decode_divide(Decoder& decoder) {
  decoder.modifiers().take_any({"approx", "full"});
  decode_binary<Divide>(decoder);
}

template <class Op, class OpNan>
void decode_extreme(Decoder& decoder) {
  if (decoder.modifiers().has("xorsign")) decoder.unknown();
  const bool nan = decoder.modifiers().take("NaN");
  if (!nan) return decode_binary<Op>(decoder);
  decode_binary<OpNan>(decoder);
}

// neg, abs: bit operations; NaN included.
template <bool kNegate>
void decode_sign(Decoder& decoder) {
  const bool ftz = decoder.modifiers().take("ftz");
  const std::string type = decoder.modifiers().take_type();
  Execute execute = nullptr;
  const auto change = []<class T, T kSign>() -> Execute {
    return map<[](T x) -> T {
      return kNegate ? static_cast<T>(x ^ kSign) : static_cast<T>(x & static_cast<T>(~kSign));
    },
               T, T>;
  };
  if (type == "f64") execute = change.template operator()<uint64_t, uint64_t{1} << 63>();
  if (type == "f32") execute = change.template operator()<uint32_t, 0x80000000u>();
  if (type == "f16" || type == "bf16") execute = change.template operator()<uint16_t, 0x8000>();
  if (type == "f16x2" || type == "bf16x2") execute = change.template operator()<uint32_t, 0x80008000u>();
  if (ftz && type == "f32")
    execute = map<[](float x) { return flush<true>(kNegate ? -x : std::fabs(x)); }, float, float>;
  if (execute == nullptr) decoder.unknown();
  emit_uniform(decoder, execute, type_bytes(type), 2);
}

// copysign d, a, b: the sign of a on b.
void decode_copysign(Decoder& decoder) {
  const std::string type = decoder.modifiers().take_type();
  if (type == "f64")
    return emit_uniform(decoder, map<[](double a, double b) { return std::copysign(b, a); }, double, double, double>, 8,
                        3);
  if (type != "f32") decoder.unknown();
  emit_uniform(decoder, map<[](float a, float b) { return std::copysign(b, a); }, float, float, float>, 4, 3);
}

enum TestKind : uint32_t { kFinite, kInfinite, kNumber, kNotNumber, kNormal, kSubnormal };

template <class T>
void test_property(Warp& warp, const Instruction& instruction, Mask mask) {
  const T* a = warp.lanes<T>(instruction.operand[1]);
  Mask result = 0;
  for_lanes(mask, [&](int lane) {
    const int category = std::fpclassify(a[lane]);
    bool holds = false;
    switch (instruction.mode) {
      case kFinite:
        holds = category != FP_INFINITE && category != FP_NAN;
        break;
      case kInfinite:
        holds = category == FP_INFINITE;
        break;
      case kNumber:
        holds = category != FP_NAN;
        break;
      case kNotNumber:
        holds = category == FP_NAN;
        break;
      case kNormal:
        holds = category == FP_NORMAL;
        break;
      case kSubnormal:
        holds = category == FP_SUBNORMAL;
        break;
    }
    result |= static_cast<Mask>(holds) << lane;
  });
  set_predicate(warp, instruction.operand[0], mask, result);
}

void decode_testp(Decoder& decoder) {
  const std::string kind =
      decoder.modifiers().take_any({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  const std::string type = decoder.modifiers().take_type();
  const uint32_t bytes = type_bytes(type);
  if (type != "f32" && type != "f64") decoder.unknown();
  const uint32_t d = decoder.destination(0, kPredicate), a = decoder.source(1, bytes);
  const TestKind which = kind == "finite"       ? kFinite
                         : kind == "infinite"   ? kInfinite
                         : kind == "number"     ? kNumber
                         : kind == "notanumber" ? kNotNumber
                         : kind == "normal"     ? kNormal
                                                : kSubnormal;
  decoder.emit(bytes == 4 ? test_property<float> : test_property<double>, {d, a}).mode = which;
}

}  // namespace

bool has_floating_type(Decoder& decoder) {
  for (const char* type : {"f32", "f64", "f16", "bf16", "f16x2", "bf16x2"}) {
    if (decoder.modifiers().has(type)) return true;
  }
  return false;
}

void decode_floating(Decoder& decoder) {
  const std::string& word = decoder.modifiers().base();
  if (word == "add") return decode_binary<Add>(decoder);
  if (word == "sub") return decode_binary<Subtract>(decoder);
  if (word == "mul") return decode_binary<Multiply>(decoder);
  if (word == "div") return decode_divide(decoder);
  if (word == "min") return decode_extreme<Minimum, MinimumNan>(decoder);
  if (word == "max") return decode_extreme<Maximum, MaximumNan>(decoder);
  if (word == "neg") return decode_sign<true>(decoder);
  if (word == "abs") return decode_sign<false>(decoder);
  decode_fused(decoder);  // mad is fma since sm_20
}

void add_floating_opcodes(OpcodeTable& table) {
  table["fma"] = decode_floating;
  table["copysign"] = decode_copysign;
  table["testp"] = decode_testp;
}

}  // namespace ptxsim
