// Opcodes by their first word. Each file of opcodes/ adds its own.
#pragma once

#include <map>
#include <string>

#include "decoder.h"

namespace ptxsim {

using DecodeOpcode = void (*)(Decoder& decoder);
using OpcodeTable = std::map<std::string, DecodeOpcode, std::less<>>;

const OpcodeTable& opcode_table();

void add_integer_opcodes(OpcodeTable& table);
void add_carry_opcodes(OpcodeTable& table);
void add_floating_opcodes(OpcodeTable& table);
void add_math_opcodes(OpcodeTable& table);
void add_comparison_opcodes(OpcodeTable& table);
void add_convert_opcodes(OpcodeTable& table);
void add_logic_opcodes(OpcodeTable& table);
void add_move_opcodes(OpcodeTable& table);
void add_memory_opcodes(OpcodeTable& table);
void add_atomic_opcodes(OpcodeTable& table);
void add_control_opcodes(OpcodeTable& table);
void add_warp_opcodes(OpcodeTable& table);
void add_matrix_opcodes(OpcodeTable& table);
void add_matrix_memory_opcodes(OpcodeTable& table);
void add_async_copy_opcodes(OpcodeTable& table);

}  // namespace ptxsim
