// The declarations of a PTX module. Bodies of functions stay tokens; decoder.h turns them into instructions.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lexer.h"
#include "machine.h"

namespace ptxsim {

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint32_t size = 0;  // bytes; 0 for `extern .shared x[]`
  uint32_t align = 1;
  bool external = false;
  std::vector<std::byte> initial;  // of `size` bytes, or empty
  struct Pointer {
    uint32_t offset;
    std::string symbol;
    int64_t addend;
  };
  std::vector<Pointer> pointers;  // addresses within `initial`
  std::byte* address = nullptr;   // of .global and .const variables; the module sets it
};

struct Function {
  std::string name;
  bool entry = false;
  bool defined = false;
  std::vector<Variable> parameters, results;
  size_t body_begin = 0, body_end = 0;  // tokens between the braces
  uint32_t max_threads = 1024;
};

struct SharedLayout {
  std::map<std::string, uint32_t, std::less<>> offsets;
  uint32_t static_bytes = 0;  // what the dynamic part starts after
};

struct ParsedModule {
  std::unique_ptr<std::string> text;  // what the tokens point into
  std::vector<Token> tokens;
  std::map<std::string, Function, std::less<>> functions;
  std::map<std::string, Variable, std::less<>> variables;
  std::map<uint32_t, std::string> files;  // .file
};

// Bytes of a type such as ".f32" (with or without its dot); 0 if it is none. ".pred" has none.
uint32_t type_bytes(std::string_view type);

// Reads the integer or the float literal at tokens[position] (a sign may precede it), as the bits of a value of `bytes`
// bytes, and moves on. Throws Error("syntax").
uint64_t parse_literal(const std::vector<Token>& tokens, size_t& position, uint32_t bytes);

// Reads one declaration "[.align n] .type name[size] [= {...}]" after its state space word and moves to the token after
// it. Throws Error("syntax").
Variable parse_variable(const std::vector<Token>& tokens, size_t& position, Space space);

ParsedModule parse_module(std::string_view ptx);

// Places the shared variables that an entry, and what it calls, uses.
SharedLayout lay_out_shared(const ParsedModule& module, const Function& entry);

[[noreturn]] void syntax_error(const Token& token, const std::string& what);

}  // namespace ptxsim
