#include "opcode_table.h"

namespace ptxsim {

const OpcodeTable& opcode_table() {
  static const OpcodeTable table = [] {
    OpcodeTable opcodes;
    add_integer_opcodes(opcodes);
    add_carry_opcodes(opcodes);
    add_floating_opcodes(opcodes);
    add_math_opcodes(opcodes);
    add_comparison_opcodes(opcodes);
    add_convert_opcodes(opcodes);
    add_logic_opcodes(opcodes);
    add_move_opcodes(opcodes);
    add_memory_opcodes(opcodes);
    add_atomic_opcodes(opcodes);
    add_control_opcodes(opcodes);
    add_warp_opcodes(opcodes);
    add_matrix_opcodes(opcodes);
    add_matrix_memory_opcodes(opcodes);
    add_async_copy_opcodes(opcodes);
    return opcodes;
  }();
  return table;
}

}  // namespace ptxsim
