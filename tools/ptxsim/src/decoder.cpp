#include "decoder.h"

#include <algorithm>
#include <cstring>

#include "opcode_table.h"

namespace ptxsim {

std::unique_ptr<Kernel> Decoder::decode(const ParsedModule& module, const Function& entry, const KernelInfo& info,
                                        const SharedLayout& shared) {
  auto kernel = std::make_unique<Kernel>();
  kernel->info = &info;
  kernel->files = &module.files;
  kernel->shared_bytes = shared.static_bytes;
  Decoder decoder(module, shared, *kernel);
  decoder.entry_ = &entry;
  decoder.scope_ = decoder.open_scope(-1);
  for (const Parameter& parameter : info.parameters) {
    decoder.scope().symbols[parameter.name] = {Space::kParam, parameter.offset, nullptr};
  }
  decoder.function_body(entry);
  kernel->local_bytes = (kernel->local_bytes + 15) / 16 * 16;
  return kernel;
}

Decoder::Decoder(const ParsedModule& module, const SharedLayout& shared, Kernel& kernel)
    : module_(module), shared_(shared), kernel_(kernel) {}

int Decoder::open_scope(int parent) {
  scopes_.emplace_back().parent = parent;
  return static_cast<int>(scopes_.size()) - 1;
}

void Decoder::function_body(const Function& function) {
  const size_t first_use = label_uses_.size();
  const size_t caller_position = position_;
  const auto caller_returns = std::move(returns_);
  returns_.clear();
  position_ = function.body_begin;
  while (position_ < function.body_end) statement();
  // A function ends in ret. The exit of an entry stands even where a label follows its last ret.
  if (&function == entry_) {
    statement_ = {};
    statement_.first_token = statement_.last_token = function.body_end;
    leave(true);
  }
  for (const size_t branch : returns_) kernel_.code[branch].target = static_cast<int32_t>(kernel_.code.size());
  returns_ = caller_returns;
  position_ = caller_position;
  resolve_labels(first_use);
}

void Decoder::statement() {
  const Token& token = module_.tokens[position_];
  if (token.is("{")) {
    scope_ = open_scope(scope_);
    ++position_;
  } else if (token.is("}")) {
    scope_ = scope().parent;
    ++position_;
  } else if (token.is(";")) {
    ++position_;
  } else if (token.kind == Token::Kind::kWord && module_.tokens[position_ + 1].is(":")) {
    position_ += 2;
    if (!module_.tokens[position_].is(".branchtargets")) {
      scope().labels[token.text] = static_cast<int32_t>(kernel_.code.size());
      return;
    }
    auto& list = scope().branch_lists[token.text];
    while (!module_.tokens[position_].is(";")) {
      const Token& label = module_.tokens[++position_];
      if (label.kind == Token::Kind::kWord) list.push_back(label.text);
    }
    ++position_;
  } else if (token.text.starts_with('.')) {
    directive();
  } else {
    statement_ = parse_statement(module_.tokens, position_);
    instruction();
  }
}

void Decoder::directive() {
  const Token& token = module_.tokens[position_];
  if (token.is(".reg")) return declare_registers();
  if (token.is(".loc")) return location();
  if (token.is(".local")) return declare_variable(Space::kLocal);
  if (token.is(".shared")) return declare_variable(Space::kShared);
  if (token.is(".param")) return declare_variable(Space::kParam);
  if (!token.is(".pragma")) syntax_error(token, "directive that is not known");
  while (!module_.tokens[position_].is(";")) ++position_;
}

void Decoder::declare_registers() {
  const auto& tokens = module_.tokens;
  const Token& type = tokens[++position_];
  const uint32_t bytes = type.is(".pred") ? kPredicate : type_bytes(type.text);
  if (bytes == 0 && !type.is(".pred")) syntax_error(type, "register type that is not known");
  if (bytes > 8) syntax_error(type, "registers of 128 bits are not known");
  do {
    const std::string_view name = tokens[++position_].text;
    if (!tokens[++position_].is("<")) {
      scope().registers[name] = {bytes, allocate_register(bytes)};
      continue;
    }
    const auto count = static_cast<size_t>(parse_literal(tokens, ++position_, 4));
    scope().ranges[name] = {bytes, std::vector<uint32_t>(count, kNone)};
    ++position_;
  } while (tokens[position_].is(","));
  ++position_;
}

void Decoder::declare_variable(Space space) {
  const Variable variable = parse_variable(module_.tokens, ++position_, space);
  if (space == Space::kShared) return;  // lay_out_shared() has placed it
  scope().symbols[variable.name] = {Space::kLocal, allocate_local(variable.size, variable.align), nullptr};
}

// .loc file line column [, function_name label, inlined_at file line column]
void Decoder::location() {
  const auto& tokens = module_.tokens;
  const uint32_t ptx_line = tokens[position_].line;
  const auto number = [&](size_t at) { return static_cast<uint32_t>(std::stoul(std::string(tokens[at].text))); };
  line_ = {number(position_ + 1), number(position_ + 2), 0, 0};
  for (position_ += 4; tokens[position_].line == ptx_line; ++position_) {
    if (!tokens[position_].is("inlined_at")) continue;
    line_.inlined_file = number(position_ + 1);
    line_.inlined_line = number(position_ + 2);
  }
}

void Decoder::instruction() {
  Modifiers modifiers(statement_.opcode);
  modifiers_ = &modifiers;
  const auto found = opcode_table().find(modifiers.base());
  if (found == opcode_table().end()) unknown();
  found->second(*this);
  if (!modifiers.empty()) unknown();
  flush_widenings();
  modifiers_ = nullptr;
}

Instruction& Decoder::emit(Execute execute, std::initializer_list<uint32_t> operands) {
  Instruction instruction;
  instruction.execute = execute;
  std::copy(operands.begin(), operands.end(), instruction.operand.begin());
  if (!statement_.guard.empty()) {
    const auto guard = find_register(statement_.guard);
    if (!guard || guard->bytes != kPredicate) fail("the guard is not a predicate");
    instruction.guard = guard->offset;
    instruction.guard_invert = statement_.guard_negated ? kFullMask : 0;
  }
  const Token &first = module_.tokens[statement_.first_token], &last = module_.tokens[statement_.last_token];
  const auto length = static_cast<size_t>(last.text.data() + last.text.size() - first.text.data());
  kernel_.text.push_back({std::string_view(first.text.data(), length), first.line, line_});
  kernel_.code.push_back(instruction);
  return kernel_.code.back();
}

uint32_t Decoder::matrix_name(const std::string& name) {
  auto& names = kernel_.matrix_names;
  const auto index = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  if (index == names.size()) names.push_back(name);
  return static_cast<uint32_t>(index);
}

void Decoder::branch(const Operand& label, bool indexed) {
  Instruction& instruction = emit(nullptr);
  const size_t index = kernel_.code.size() - 1;
  instruction.flow = indexed ? Flow::kIndexedBranch : Flow::kBranch;
  if (!indexed) {
    label_uses_.push_back({label.name, scope_, index, -1, label.token});
    return;
  }
  for (int at = scope_; at >= 0; at = scopes_[static_cast<size_t>(at)].parent) {
    const auto& lists = scopes_[static_cast<size_t>(at)].branch_lists;
    const auto list = lists.find(label.name);
    if (list == lists.end()) continue;
    instruction.mode = static_cast<uint32_t>(kernel_.branch_targets.size());
    instruction.mode2 = static_cast<uint32_t>(list->second.size());
    for (const std::string_view target : list->second) {
      label_uses_.push_back({target, scope_, index, static_cast<int32_t>(kernel_.branch_targets.size()), label.token});
      kernel_.branch_targets.push_back(-1);
    }
    return;
  }
  fail("no .branchtargets of that name");
}

void Decoder::resolve_labels(size_t first_use) {
  for (size_t i = first_use; i < label_uses_.size(); ++i) {
    const LabelUse& use = label_uses_[i];
    int32_t target = -1;
    for (int at = use.scope; at >= 0 && target < 0; at = scopes_[static_cast<size_t>(at)].parent) {
      const auto& labels = scopes_[static_cast<size_t>(at)].labels;
      const auto label = labels.find(use.label);
      if (label != labels.end()) target = label->second;
    }
    if (target < 0) syntax_error(module_.tokens[use.token], "no such label");
    if (use.branch_target < 0)
      kernel_.code[use.instruction].target = target;
    else
      kernel_.branch_targets[static_cast<size_t>(use.branch_target)] = target;
  }
  label_uses_.resize(first_use);
}

void Decoder::leave(bool whole_kernel) {
  Instruction& instruction = emit(nullptr);
  const bool exits = whole_kernel || call_stack_.empty();
  instruction.flow = exits ? Flow::kExit : Flow::kBranch;
  if (!exits) returns_.push_back(kernel_.code.size() - 1);
}

// call (results), name, (arguments): the body of the function is decoded in place, its parameters being other names of
// the arguments.
void Decoder::call() {
  const Statement call = statement_;
  size_t next = 0;
  std::vector<Operand> results, arguments;
  if (call.operands.at(0).kind == Operand::Kind::kList) results = call.operands[next++].elements;
  const Operand& target = operand(next++);
  if (next < call.operands.size()) arguments = operand(next).elements;
  const auto found = module_.functions.find(target.name);
  if (found == module_.functions.end()) fail("indirect calls are not known");
  const Function& function = found->second;
  if (!function.defined) return call_host_function(function.name);
  if (std::find(call_stack_.begin(), call_stack_.end(), target.name) != call_stack_.end())
    fail("recursion is not known");
  if (results.size() != function.results.size() || arguments.size() != function.parameters.size()) {
    fail("the call does not match the function's parameters");
  }
  const int body = open_scope(-1);
  const auto bind = [&](const std::string& formal, const Operand& actual) {
    const auto symbol = find_symbol(actual.name);
    if (!symbol) fail("arguments of calls have to be in .param space");
    scopes_[static_cast<size_t>(body)].symbols[formal] = *symbol;
  };
  for (size_t i = 0; i < results.size(); ++i) bind(function.results[i].name, results[i]);
  for (size_t i = 0; i < arguments.size(); ++i) bind(function.parameters[i].name, arguments[i]);
  const size_t jump = kernel_.code.size();
  if (!call.guard.empty()) {  // @p call: a branch around the body for the others
    Instruction& around = emit(nullptr);
    around.flow = Flow::kBranch;
    around.guard_invert ^= kFullMask;
  }
  const int caller = scope_;
  const SourceLine line = line_;
  Modifiers* const modifiers = modifiers_;
  call_stack_.push_back(target.name);
  scope_ = body;
  function_body(function);
  call_stack_.pop_back();
  scope_ = caller;
  line_ = line;
  statement_ = call;
  modifiers_ = modifiers;
  if (!call.guard.empty()) kernel_.code[jump].target = static_cast<int32_t>(kernel_.code.size());
}

void Decoder::call_host_function(const std::string& name) {
  if (name == "vprintf") return;  // its text is not what a test of a kernel looks at
  if (name != "__assertfail") fail("function without a body");
  emit([](Warp&, const Instruction&, Mask mask) {
    throw Fault{"trap", "an assertion of the kernel failed", std::countr_zero(mask)};
  });
}

void Decoder::unknown() const {
  const Token& token = module_.tokens[statement_.first_token];
  throw Error("unknown-opcode", kernel_.info->name + ": PTX line " + std::to_string(token.line) + ": opcode '" +
                                    std::string(statement_.opcode) + "' is not known to ptxsim");
}

void Decoder::fail(const std::string& what) const {
  const Token& token = module_.tokens[statement_.first_token];
  throw Error("syntax", kernel_.info->name + ": PTX line " + std::to_string(token.line) + ": " + what + " in '" +
                            std::string(statement_.opcode) + "'");
}

}  // namespace ptxsim
