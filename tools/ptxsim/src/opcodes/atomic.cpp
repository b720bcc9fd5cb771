// atom and red. The lanes of a warp take their turns in ascending order.
#include <algorithm>
#include <cstring>

#include "../access.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

enum class Operation : uint8_t {
  kAdd,
  kMin,
  kMax,
  kExchange,
  kCompareAndSwap,
  kAnd,
  kOr,
  kXor,
  kIncrement,
  kDecrement
};

template <Operation kOperation, class T>
T updated(T old, T b, T c) {
  if constexpr (kOperation == Operation::kAdd) {
    if constexpr (std::is_floating_point_v<T>)
      return canonical(old + b);
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(b));
    else if constexpr (std::is_same_v<T, Half>)
      return to_half(double{to_float(old)} + to_float(b));
    else
      return to_bfloat16(double{to_float(old)} + to_float(b));
  } else if constexpr (kOperation == Operation::kExchange) {
    return b;
  } else if constexpr (!std::is_integral_v<T>) {
    return old;  // never instantiated for a decoded instruction
  } else if constexpr (kOperation == Operation::kMin) {
    return std::min(old, b);
  } else if constexpr (kOperation == Operation::kMax) {
    return std::max(old, b);
  } else if constexpr (kOperation == Operation::kCompareAndSwap) {
    return old == b ? c : old;
  } else if constexpr (kOperation == Operation::kAnd) {
    return old & b;
  } else if constexpr (kOperation == Operation::kOr) {
    return old | b;
  } else if constexpr (kOperation == Operation::kXor) {
    return old ^ b;
  } else if constexpr (kOperation == Operation::kIncrement) {
    return old >= b ? T{0} : static_cast<T>(old + 1);
  } else {
    return old == 0 || old > b ? b : static_cast<T>(old - 1);
  }
}

// Operands: d (kNone for red), b, c.
template <Operation kOperation, class T>
void atomic(Warp& warp, const Instruction& instruction, Mask mask) {
  uint64_t addresses[kWarpSize];
  gather_addresses(warp, instruction, addresses);
  resolve(warp, instruction, mask, Access::kAtomic, sizeof(T), addresses);
  const T *b = warp.lanes<T>(instruction.operand[1]), *c = warp.lanes<T>(instruction.operand[2]);
  T old_values[kWarpSize];
  for_lanes(mask, [&](int lane) {
    void* const place = reinterpret_cast<void*>(addresses[lane]);
    T old;
    std::memcpy(&old, place, sizeof(T));
    const T value = updated<kOperation, T>(old, b[lane], c[lane]);
    std::memcpy(place, &value, sizeof(T));
    old_values[lane] = old;
  });
  if (instruction.operand[0] == kNone) return;
  T* d = warp.lanes<T>(instruction.operand[0]);
  for_lanes(mask, [&](int lane) { d[lane] = old_values[lane]; });
}

// atom.add.noftz.f16x2 and bf16x2.
template <class T>
void atomic_add_pair(Warp& warp, const Instruction& instruction, Mask mask) {
  uint64_t addresses[kWarpSize];
  gather_addresses(warp, instruction, addresses);
  resolve(warp, instruction, mask, Access::kAtomic, 4, addresses);
  const uint32_t* b = warp.lanes<uint32_t>(instruction.operand[1]);
  for_lanes(mask, [&](int lane) {
    auto* const place = reinterpret_cast<uint32_t*>(addresses[lane]);
    const uint32_t old = *place;
    const auto sum = [&](int shift) {
      const T x{static_cast<uint16_t>(old >> shift)}, y{static_cast<uint16_t>(b[lane] >> shift)};
      return uint32_t{updated<Operation::kAdd, T>(x, y, T{}).bits} << shift;
    };
    *place = sum(0) | sum(16);
    if (instruction.operand[0] != kNone) warp.lanes<uint32_t>(instruction.operand[0])[lane] = old;
  });
}

Execute atomic_instance(Decoder& decoder, const std::string& operation, const std::string& type) {
  using O = Operation;
  const auto integer = [&](auto make) {
    return type.ends_with("16") && operation != "cas" ? (decoder.unknown(), Execute{})
                                                      : for_integer(decoder, type, make);
  };
  if (operation == "add") {
    if (type == "f32") return atomic<O::kAdd, float>;
    if (type == "f64") return atomic<O::kAdd, double>;
    if (type == "f16") return atomic<O::kAdd, Half>;
    if (type == "bf16") return atomic<O::kAdd, BFloat16>;
    if (type == "f16x2") return atomic_add_pair<Half>;
    if (type == "bf16x2") return atomic_add_pair<BFloat16>;
    return integer([]<class T>() -> Execute { return atomic<O::kAdd, T>; });
  }
  if (operation == "min") return integer([]<class T>() -> Execute { return atomic<O::kMin, T>; });
  if (operation == "max") return integer([]<class T>() -> Execute { return atomic<O::kMax, T>; });
  if (operation == "exch") return integer([]<class T>() -> Execute { return atomic<O::kExchange, T>; });
  if (operation == "cas") return integer([]<class T>() -> Execute { return atomic<O::kCompareAndSwap, T>; });
  if (operation == "and") return integer([]<class T>() -> Execute { return atomic<O::kAnd, T>; });
  if (operation == "or") return integer([]<class T>() -> Execute { return atomic<O::kOr, T>; });
  if (operation == "xor") return integer([]<class T>() -> Execute { return atomic<O::kXor, T>; });
  if (operation == "inc" && type == "u32") return atomic<O::kIncrement, uint32_t>;
  if (operation == "dec" && type == "u32") return atomic<O::kDecrement, uint32_t>;
  decoder.unknown();
}

template <bool kReturns>
void decode_atomic(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool shared = modifiers.take("shared") || modifiers.take("shared::cta");
  const bool global = modifiers.take("global");
  modifiers.take_any({"relaxed", "acquire", "release", "acq_rel"});
  modifiers.take_any({"cta", "cluster", "gpu", "sys"});
  modifiers.take("noftz");
  const std::string operation =
      modifiers.take_any({"add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"});
  const std::string type = modifiers.take_type();
  const uint32_t bytes = type_bytes(type);
  const Execute execute = atomic_instance(decoder, operation, type);
  const size_t first = kReturns ? 1 : 0;
  const uint32_t d = kReturns ? decoder.destination(0, bytes) : kNone, b = decoder.source(first + 1, bytes);
  const uint32_t c = operation == "cas" ? decoder.source(first + 2, bytes) : b;
  const auto where = decoder.address(decoder.operand(first));
  Instruction& instruction = decoder.emit(execute, {d, b, c});
  instruction.space = shared ? Space::kShared : global ? Space::kGlobal : Space::kGeneric;
  instruction.address = where.reg;
  instruction.address_bytes = static_cast<uint8_t>(where.bytes);
  instruction.immediate = where.offset;
}

}  // namespace

void add_atomic_opcodes(OpcodeTable& table) {
  table["atom"] = decode_atomic<true>;
  table["red"] = decode_atomic<false>;
}

}  // namespace ptxsim
