// Turns the body of a kernel into instructions. The functions in opcodes/ call it, one for each opcode.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel.h"
#include "parser.h"
#include "statement.h"

namespace ptxsim {

constexpr uint32_t kPredicate = 0;  // the "bytes" of a predicate

class Decoder {
 public:
  // Throws Error("syntax" | "unknown-opcode").
  static std::unique_ptr<Kernel> decode(const ParsedModule& module, const Function& entry, const KernelInfo& info,
                                        const SharedLayout& shared);

  // --- For the functions that decode an opcode. Ask for the registers first, then emit: a source may emit a step.
  Modifiers& modifiers() { return *modifiers_; }
  size_t num_operands() const { return statement_.operands.size(); }
  const Operand& operand(size_t index) const;

  // Register of an operand of exactly `bytes` bytes (kPredicate: a predicate). A number becomes a constant, a symbol
  // its address.
  uint32_t source(const Operand& operand, uint32_t bytes);
  uint32_t source(size_t index, uint32_t bytes) { return source(operand(index), bytes); }
  uint32_t destination(const Operand& operand, uint32_t bytes);
  uint32_t destination(size_t index, uint32_t bytes) { return destination(operand(index), bytes); }
  // The same where PTX allows a register that is wider than the type (ld, st, cvt): it is cut, or extended afterwards.
  uint32_t wide_source(const Operand& operand, uint32_t bytes);
  uint32_t wide_destination(const Operand& operand, uint32_t bytes, bool sign_extend);

  uint32_t constant(uint64_t value, uint32_t bytes);
  uint32_t temporary(uint32_t bytes);
  uint32_t special(SpecialRegister which, uint32_t bytes);
  bool is_predicate(const Operand& operand);
  // Value of an operand that has to be a literal.
  uint64_t literal(const Operand& operand) const;
  // Sets base and offset of the address operand.
  void set_address(Instruction& instruction, const Operand& operand);
  // The register and offset of an address operand; set_address() in two steps, for opcodes with two addresses.
  struct Address {
    uint32_t reg = kNone;
    uint32_t bytes = 8;
    int64_t offset = 0;
  };
  Address address(const Operand& operand);

  // Appends an instruction with the guard of the statement. The reference is good until the next one.
  Instruction& emit(Execute execute, std::initializer_list<uint32_t> operands = {});
  Instruction& last() { return kernel_.code.back(); }
  uint32_t matrix_name(const std::string& name);  // index for Launch::matrix_instructions

  void branch(const Operand& label, bool indexed);
  void leave(bool whole_kernel);  // exit, ret
  void call();

  [[noreturn]] void unknown() const;  // Error("unknown-opcode")
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Register {
    uint32_t bytes = 0;
    uint32_t offset = kNone;
  };
  struct RegisterRange {
    uint32_t bytes;
    std::vector<uint32_t> offsets;  // kNone until used
  };
  struct Symbol {
    Space space = Space::kGlobal;
    int64_t offset = 0;  // address in shared memory, or offset in the kernel's parameters or the thread's local memory
    const std::byte* address = nullptr;
  };
  struct Scope {
    int parent = -1;
    std::map<std::string_view, Register> registers;
    std::map<std::string_view, RegisterRange> ranges;
    std::map<std::string, Symbol, std::less<>> symbols;
    std::map<std::string_view, int32_t> labels;
    std::map<std::string_view, std::vector<std::string_view>> branch_lists;
  };
  struct LabelUse {
    std::string_view label;
    int scope;
    size_t instruction;
    int32_t branch_target;  // index in Kernel::branch_targets, or -1: the instruction's own target
    size_t token;
  };

  Decoder(const ParsedModule& module, const SharedLayout& shared, Kernel& kernel);

  void function_body(const Function& function);
  void statement();
  void directive();
  void declare_registers();
  void declare_variable(Space space);
  void location();
  void instruction();
  void flush_widenings();
  void resolve_labels(size_t first_use);
  void call_host_function(const std::string& name);

  int open_scope(int parent);
  Scope& scope() { return scopes_[static_cast<size_t>(scope_)]; }
  std::optional<Register> find_register(std::string_view name);
  std::optional<Symbol> find_symbol(std::string_view name) const;
  uint32_t symbol_address(const Symbol& symbol, int64_t addend, uint32_t bytes);
  std::optional<uint32_t> special_register(std::string_view name, uint32_t bytes);
  uint32_t allocate_register(uint32_t bytes);
  uint32_t resized(uint32_t reg, uint32_t from, uint32_t to);
  int64_t allocate_local(uint32_t size, uint32_t align);

  const ParsedModule& module_;
  const SharedLayout& shared_;
  Kernel& kernel_;
  const Function* entry_ = nullptr;
  std::deque<Scope> scopes_;
  int scope_ = -1;
  size_t position_ = 0;
  Statement statement_;
  Modifiers* modifiers_ = nullptr;
  SourceLine line_;
  std::vector<LabelUse> label_uses_;
  std::vector<size_t> returns_;  // branches to the end of the function that is being inlined
  std::vector<std::string_view> call_stack_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constants_;
  std::map<SpecialRegister, uint32_t> specials_;
  uint32_t next_predicate_ = 0, predicates_left_ = 0;
  struct Widening {
    uint32_t from, from_bytes, to, to_bytes;
    bool sign;
  };
  std::vector<Widening> widenings_;
};

}  // namespace ptxsim
