#pragma once

#include <string>

// Prints how often each opcode stands in the PTX of a file, and the kernels that the interpreter cannot decode, with
// the opcode that it lacks. Returns the exit status: 0 if it knows everything, 1 if not.
int list_opcodes(const std::string& path);
