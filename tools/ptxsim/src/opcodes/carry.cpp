// Arithmetic of several words: add.cc, addc, sub.cc, subc, mad.cc, madc. The carry, or borrow, is a bit per lane.
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

enum Kind : uint32_t { kAdd, kSubtract, kMultiplyLow, kMultiplyHigh };

template <class T>
T high_half(T a, T b, bool is_signed) {
  using Signed = std::make_signed_t<T>;
  const auto product =
      is_signed ? static_cast<unsigned __int128>(static_cast<__int128>(static_cast<Signed>(a)) * static_cast<Signed>(b))
                : static_cast<unsigned __int128>(a) * b;
  return static_cast<T>(product >> (8 * sizeof(T)));
}

// Operands: d, a, b, and c for products. mode: bit 0 takes the carry, bit 1 leaves one, bit 2 is signed; mode2: Kind.
template <class T>
void with_carry(Warp& warp, const Instruction& instruction, Mask mask) {
  T* d = warp.lanes<T>(instruction.operand[0]);
  const T *a = warp.lanes<T>(instruction.operand[1]), *b = warp.lanes<T>(instruction.operand[2]);
  const T* c = warp.lanes<T>(instruction.operand[3]);
  Mask carry = 0;
  for_lanes(mask, [&](int lane) {
    const T in = (instruction.mode & 1) != 0 ? static_cast<T>(warp.carry >> lane & 1) : T{0};
    unsigned __int128 wide = 0;
    switch (instruction.mode2) {
      case kAdd:
        wide = static_cast<unsigned __int128>(a[lane]) + b[lane] + in;
        break;
      case kSubtract:
        wide = static_cast<unsigned __int128>(a[lane]) - b[lane] - in;
        break;
      case kMultiplyLow:
        wide = static_cast<unsigned __int128>(static_cast<T>(a[lane] * b[lane])) + c[lane] + in;
        break;
      default:
        wide = static_cast<unsigned __int128>(high_half(a[lane], b[lane], (instruction.mode & 4) != 0)) + c[lane] + in;
        break;
    }
    d[lane] = static_cast<T>(wide);
    carry |= static_cast<Mask>(wide >> (8 * sizeof(T)) & 1) << lane;
  });
  if ((instruction.mode & 2) != 0) warp.carry = (warp.carry & ~mask) | carry;
}

}  // namespace

void decode_carry(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const std::string& word = modifiers.base();
  const bool product = word.starts_with("mad"), takes = word.ends_with('c');
  const std::string part = modifiers.take_any({"lo", "hi"});
  const bool leaves = modifiers.take("cc");
  const std::string type = modifiers.take_type();
  const uint32_t bytes = type_bytes(type);
  if ((bytes != 4 && bytes != 8) || product == part.empty()) decoder.unknown();
  const Kind kind = word.starts_with("add")   ? kAdd
                    : word.starts_with("sub") ? kSubtract
                    : part == "lo"            ? kMultiplyLow
                                              : kMultiplyHigh;
  emit_uniform(decoder, bytes == 4 ? with_carry<uint32_t> : with_carry<uint64_t>, bytes, product ? 4 : 3);
  decoder.last().mode = (takes ? 1u : 0u) | (leaves ? 2u : 0u) | (type[0] == 's' ? 4u : 0u);
  decoder.last().mode2 = kind;
}

void add_carry_opcodes(OpcodeTable& table) { table["addc"] = table["subc"] = table["madc"] = decode_carry; }

}  // namespace ptxsim
