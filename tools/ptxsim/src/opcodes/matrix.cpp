// mma.sync: matrix products of a warp.
//
// Every shape has fragments of one pattern. With e elements in a 32-bit register, g = lane / 4 and t = lane % 4:
//   A, register r, element j: row g + 8 (r mod 2), column t e + j + 4 e (r / 2)
//   B, register r, element j: row t e + j + 4 e r, column g
//   C and D, register r: row g + 8 (r / 2), column 2 t + r mod 2
//
// The order of a floating sum differs by shape on purpose, as hardware's does too, so that a kernel that mixes shapes
// between row counts gives rows that differ, and a test of row-exactness sees it:
//   m16n8k8 of 16-bit types, m16n8k4 of tf32: C, then the products, k ascending
//   m16n8k16 of 16-bit types: (sum over even k) + (sum over odd k), then + C
//   m16n8k8 of tf32: the products, k descending, then + C
// A product of two such values is exact in f32; each sum is rounded to nearest.
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

constexpr int kRows = 16, kColumns = 8;

// Element types. The registers of a fragment, seen as an array of Storage, hold row after row of 4 * kElements values.
struct BFloat16Pair {
  using Value = float;
  using Storage = uint16_t;
  static constexpr int kElements = 2;
  static float get(Storage x) { return to_float(BFloat16{x}); }
};
struct HalfPair {
  using Value = float;
  using Storage = uint16_t;
  static constexpr int kElements = 2;
  static float get(Storage x) { return to_float(Half{x}); }
};
struct TensorFloat32 {  // the low 13 bits are not looked at
  using Value = float;
  using Storage = uint32_t;
  static constexpr int kElements = 1;
  static float get(Storage x) { return std::bit_cast<float>(x & ~0x1fffu); }
};
struct Signed8 {
  using Value = int32_t;
  using Storage = int8_t;
  static constexpr int kElements = 4;
  static int32_t get(Storage x) { return x; }
};
struct Unsigned8 {
  using Value = int32_t;
  using Storage = uint8_t;
  static constexpr int kElements = 4;
  static int32_t get(Storage x) { return x; }
};

enum class Order { kFromC, kEvenOdd, kDescending };

template <class Type, int kDepth>
constexpr Order order_of() {
  if (Type::kElements == 2) return kDepth == 16 ? Order::kEvenOdd : Order::kFromC;
  return kDepth == 8 && Type::kElements == 1 ? Order::kDescending : Order::kFromC;
}

template <Order kOrder, int kDepth>
void multiply_row(const float* a, const float (*b)[kColumns], float* c) {
  float first[kColumns] = {}, second[kColumns] = {};
  if constexpr (kOrder == Order::kFromC) {
    for (int k = 0; k < kDepth; ++k) {
      for (int n = 0; n < kColumns; ++n) c[n] += a[k] * b[k][n];
    }
    return;
  } else if constexpr (kOrder == Order::kEvenOdd) {
    for (int k = 0; k < kDepth; k += 2) {
      for (int n = 0; n < kColumns; ++n) {
        first[n] += a[k] * b[k][n];
        second[n] += a[k + 1] * b[k + 1][n];
      }
    }
  } else {
    for (int k = kDepth - 1; k >= 0; --k) {
      for (int n = 0; n < kColumns; ++n) first[n] += a[k] * b[k][n];
    }
  }
  for (int n = 0; n < kColumns; ++n) c[n] = (first[n] + second[n]) + c[n];
}

template <Order, int kDepth>
void multiply_row(const int32_t* a, const int32_t (*b)[kColumns], int32_t* c) {
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < kColumns; ++n) {
      c[n] = static_cast<int32_t>(static_cast<uint32_t>(c[n]) + static_cast<uint32_t>(a[k] * b[k][n]));
    }
  }
}

inline float finished(float x) { return canonical(x); }
inline int32_t finished(int32_t x) { return x; }

// Operands: d0-d3, A's registers, B's, c0-c3.
template <class A, class B, int kDepth>
void multiply(Warp& warp, const Instruction& instruction, Mask) {
  using Value = typename A::Value;
  constexpr int kStep = 4 * A::kElements, kRegistersB = kDepth / kStep, kRegistersA = 2 * kRegistersB, kGroups = 8;
  alignas(32) Value a[kRows][kDepth], b[kDepth][kColumns], c[kRows][kColumns];
  const auto reg = [&](int index) { return instruction.operand[static_cast<size_t>(index)]; };
  for (int r = 0; r < kRegistersA; ++r) {
    const auto* elements = warp.lanes<typename A::Storage>(reg(4 + r));
    for (int group = 0; group < kGroups; ++group) {
      Value* row = a[group + 8 * (r % 2)] + kStep * (r / 2);
      for (int i = 0; i < kStep; ++i) row[i] = A::get(elements[kStep * group + i]);
    }
  }
  for (int r = 0; r < kRegistersB; ++r) {
    const auto* elements = warp.lanes<typename B::Storage>(reg(4 + kRegistersA + r));
    Value columns[kGroups * kStep];
    for (int i = 0; i < kGroups * kStep; ++i) columns[i] = B::get(elements[i]);
    for (int i = 0; i < kStep; ++i) {
      for (int group = 0; group < kGroups; ++group) b[kStep * r + i][group] = columns[kStep * group + i];
    }
  }
  for (int r = 0; r < 4; r += 2) {
    const Value *even = warp.lanes<Value>(reg(4 + kRegistersA + kRegistersB + r)),
                *odd = warp.lanes<Value>(reg(5 + kRegistersA + kRegistersB + r));
    Value* rows = c[8 * (r / 2)];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      rows[2 * lane] = even[lane];
      rows[2 * lane + 1] = odd[lane];
    }
  }
  for (int row = 0; row < kRows; ++row) multiply_row<order_of<A, kDepth>(), kDepth>(a[row], b, c[row]);
  for (int r = 0; r < 4; r += 2) {
    Value *even = warp.lanes<Value>(reg(r)), *odd = warp.lanes<Value>(reg(r + 1));
    const Value* rows = c[8 * (r / 2)];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      even[lane] = finished(rows[2 * lane]);
      odd[lane] = finished(rows[2 * lane + 1]);
    }
  }
  ++warp.block->launch->matrix_instructions[instruction.mode];
}

struct Shape {
  Execute execute = nullptr;
  size_t registers_a = 0, registers_b = 0;
};

template <class A, class B, int kDepth>
Shape shape() {
  constexpr size_t kRegistersB = kDepth / (4 * A::kElements);
  return {multiply<A, B, kDepth>, 2 * kRegistersB, kRegistersB};
}

Shape find_shape(const std::string& size, const std::string& a, const std::string& b) {
  const std::string key = size + "." + a + "." + b;
  static const std::map<std::string, Shape> shapes = {
      {"m16n8k16.bf16.bf16", shape<BFloat16Pair, BFloat16Pair, 16>()},
      {"m16n8k8.bf16.bf16", shape<BFloat16Pair, BFloat16Pair, 8>()},
      {"m16n8k16.f16.f16", shape<HalfPair, HalfPair, 16>()},
      {"m16n8k8.f16.f16", shape<HalfPair, HalfPair, 8>()},
      {"m16n8k8.tf32.tf32", shape<TensorFloat32, TensorFloat32, 8>()},
      {"m16n8k4.tf32.tf32", shape<TensorFloat32, TensorFloat32, 4>()},
      {"m16n8k32.s8.s8", shape<Signed8, Signed8, 32>()},
      {"m16n8k16.s8.s8", shape<Signed8, Signed8, 16>()},
      {"m16n8k32.u8.u8", shape<Unsigned8, Unsigned8, 32>()},
      {"m16n8k16.u8.u8", shape<Unsigned8, Unsigned8, 16>()},
      {"m16n8k32.s8.u8", shape<Signed8, Unsigned8, 32>()},
      {"m16n8k16.s8.u8", shape<Signed8, Unsigned8, 16>()},
      {"m16n8k32.u8.s8", shape<Unsigned8, Signed8, 32>()},
      {"m16n8k16.u8.s8", shape<Unsigned8, Signed8, 16>()},
  };
  const auto found = shapes.find(key);
  return found == shapes.end() ? Shape{} : found->second;
}

void decode_mma(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool form =
      modifiers.take("sync") && modifiers.take("aligned") && modifiers.take("row") && modifiers.take("col");
  const std::string size = modifiers.take_any({"m16n8k16", "m16n8k8", "m16n8k4", "m16n8k32"});
  const std::string d_type = modifiers.take_type(), a_type = modifiers.take_type(), b_type = modifiers.take_type(),
                    c_type = modifiers.take_type();
  const Shape shape = find_shape(size, a_type, b_type);
  const std::string sum_type = a_type.ends_with("8") ? "s32" : "f32";
  if (!form || shape.execute == nullptr || d_type != sum_type || c_type != sum_type) decoder.unknown();
  std::array<uint32_t, kMaxOperands> registers{};
  size_t count = 0;
  const auto take = [&](size_t index, size_t expected, bool destination) {
    const Operand& operand = decoder.operand(index);
    const size_t given = operand.kind == Operand::Kind::kVector ? operand.elements.size() : 1;
    if (given != expected) decoder.fail("a fragment has the wrong number of registers");
    for (size_t i = 0; i < given; ++i) {
      const Operand& element = operand.kind == Operand::Kind::kVector ? operand.elements[i] : operand;
      registers[count++] = destination ? decoder.destination(element, 4) : decoder.source(element, 4);
    }
  };
  take(0, 4, true);
  take(1, shape.registers_a, false);
  take(2, shape.registers_b, false);
  take(3, 4, false);
  const uint32_t name = decoder.matrix_name("mma." + size + "." + a_type + (a_type == b_type ? "" : "." + b_type));
  Instruction& instruction = decoder.emit(shape.execute);
  instruction.operand = registers;
  instruction.flow = Flow::kSync;
  instruction.mode = name;
}

}  // namespace

void add_matrix_opcodes(OpcodeTable& table) { table["mma"] = decode_mma; }

}  // namespace ptxsim
