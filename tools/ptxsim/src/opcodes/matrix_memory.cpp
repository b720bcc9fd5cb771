// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements, a row at the address of each of 8 lanes.
#include <cstring>

#include "../access.h"
#include "../opcode_table.h"
#include "families.h"

namespace ptxsim {
namespace {

struct Element {
  int row, column;
};

// Where element j of a lane's register lies in the matrix.
template <bool kTransposed>
Element element_of(int lane, int j) {
  const Element plain{lane / 4, lane % 4 * 2 + j};
  return kTransposed ? Element{plain.column, plain.row} : plain;
}

// Rows of 16 bytes of `count` matrices, from the first 8 * count lanes.
void row_addresses(Warp& warp, const Instruction& instruction, int count, Access access, uint64_t* rows) {
  const Mask mask = count == 4 ? kFullMask : (Mask{1} << (8 * count)) - 1;
  gather_addresses(warp, instruction, rows);
  resolve(warp, instruction, mask, access, 16, rows);
}

template <int kCount, bool kTransposed>
void load_matrices(Warp& warp, const Instruction& instruction, Mask) {
  uint64_t rows[kWarpSize];
  row_addresses(warp, instruction, kCount, Access::kWarpLoad, rows);
  for (int matrix = 0; matrix < kCount; ++matrix) {
    uint16_t values[8][8];
    for (int row = 0; row < 8; ++row)
      std::memcpy(values[row], reinterpret_cast<const void*>(rows[8 * matrix + row]), 16);
    uint32_t* d = warp.lanes<uint32_t>(instruction.operand[static_cast<size_t>(matrix)]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Element low = element_of<kTransposed>(lane, 0), high = element_of<kTransposed>(lane, 1);
      d[lane] = values[low.row][low.column] | uint32_t{values[high.row][high.column]} << 16;
    }
  }
}

template <int kCount, bool kTransposed>
void store_matrices(Warp& warp, const Instruction& instruction, Mask) {
  uint64_t rows[kWarpSize];
  row_addresses(warp, instruction, kCount, Access::kStore, rows);
  for (int matrix = 0; matrix < kCount; ++matrix) {
    uint16_t values[8][8];
    const uint32_t* s = warp.lanes<uint32_t>(instruction.operand[static_cast<size_t>(matrix)]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Element low = element_of<kTransposed>(lane, 0), high = element_of<kTransposed>(lane, 1);
      values[low.row][low.column] = static_cast<uint16_t>(s[lane]);
      values[high.row][high.column] = static_cast<uint16_t>(s[lane] >> 16);
    }
    for (int row = 0; row < 8; ++row) std::memcpy(reinterpret_cast<void*>(rows[8 * matrix + row]), values[row], 16);
  }
}

void transpose_matrix(Warp& warp, const Instruction& instruction, Mask) {
  uint16_t values[8][8];
  const uint32_t* s = warp.lanes<uint32_t>(instruction.operand[1]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int j = 0; j < 2; ++j) values[lane / 4][lane % 4 * 2 + j] = static_cast<uint16_t>(s[lane] >> (16 * j));
  }
  uint32_t* d = warp.lanes<uint32_t>(instruction.operand[0]);
  for (int lane = 0; lane < kWarpSize; ++lane)
    d[lane] = values[lane % 4 * 2][lane / 4] | uint32_t{values[lane % 4 * 2 + 1][lane / 4]} << 16;
}

template <bool kStore>
Execute matrices_instance(size_t count, bool transposed) {
  const auto choose = [transposed]<int kCount>() -> Execute {
    if constexpr (kStore)
      return transposed ? store_matrices<kCount, true> : store_matrices<kCount, false>;
    else
      return transposed ? load_matrices<kCount, true> : load_matrices<kCount, false>;
  };
  return count == 1   ? choose.template operator()<1>()
         : count == 2 ? choose.template operator()<2>()
                      : choose.template operator()<4>();
}

template <bool kStore>
void decode_matrices(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool form = modifiers.take("sync") && modifiers.take("aligned") && modifiers.take("m8n8");
  const std::string number = modifiers.take_any({"x1", "x2", "x4"});
  const bool transposed = modifiers.take("trans"), shared = modifiers.take("shared") || modifiers.take("shared::cta");
  if (!form || number.empty() || modifiers.take_type() != "b16") decoder.unknown();
  const auto count = static_cast<size_t>(number[1] - '0');
  const Operand& value = decoder.operand(kStore ? 1 : 0);
  const size_t given = value.kind == Operand::Kind::kVector ? value.elements.size() : 1;
  if (given != count) decoder.fail("the vector has the wrong number of registers");
  std::array<uint32_t, 4> registers{};
  for (size_t i = 0; i < count; ++i) {
    const Operand& element = value.kind == Operand::Kind::kVector ? value.elements[i] : value;
    registers[i] = kStore ? decoder.source(element, 4) : decoder.destination(element, 4);
  }
  const auto where = decoder.address(decoder.operand(kStore ? 0 : 1));
  Instruction& instruction = decoder.emit(matrices_instance<kStore>(count, transposed));
  std::copy(registers.begin(), registers.end(), instruction.operand.begin());
  instruction.flow = Flow::kSync;
  instruction.space = shared ? Space::kShared : Space::kGeneric;
  instruction.address = where.reg;
  instruction.address_bytes = static_cast<uint8_t>(where.bytes);
  instruction.immediate = where.offset;
}

void decode_movmatrix(Decoder& decoder) {
  Modifiers& modifiers = decoder.modifiers();
  const bool form =
      modifiers.take("sync") && modifiers.take("aligned") && modifiers.take("m8n8") && modifiers.take("trans");
  if (!form || modifiers.take_type() != "b16") decoder.unknown();
  emit_uniform(decoder, transpose_matrix, 4, 2);
  decoder.last().flow = Flow::kSync;
}

}  // namespace

void add_matrix_memory_opcodes(OpcodeTable& table) {
  table["ldmatrix"] = decode_matrices<false>;
  table["stmatrix"] = decode_matrices<true>;
  table["movmatrix"] = decode_movmatrix;
}

}  // namespace ptxsim
