#include "parser.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace ptxsim {
namespace {

std::optional<Space> space_of(const Token& token) {
  static const std::map<std::string_view, Space> spaces = {{".global", Space::kGlobal},
                                                           {".const", Space::kConst},
                                                           {".shared", Space::kShared},
                                                           {".local", Space::kLocal},
                                                           {".param", Space::kParam}};
  const auto found = spaces.find(token.text);
  if (found == spaces.end()) return std::nullopt;
  return found->second;
}

class ModuleParser {
 public:
  explicit ModuleParser(ParsedModule& module) : module_(module), tokens_(module.tokens) {}

  void run() {
    while (tokens_[position_].kind != Token::Kind::kEnd) declaration();
  }

 private:
  const Token& token() const { return tokens_[position_]; }

  bool take(std::string_view text) {
    if (!token().is(text)) return false;
    ++position_;
    return true;
  }

  void expect(std::string_view text) {
    if (!take(text)) syntax_error(token(), "expected '" + std::string(text) + "'");
  }

  void skip_line() {
    const uint32_t line = token().line;
    while (token().line == line && token().kind != Token::Kind::kEnd) ++position_;
  }

  void skip_braces() {
    expect("{");
    for (int depth = 1; depth > 0; ++position_) {
      if (token().kind == Token::Kind::kEnd) syntax_error(token(), "missing '}'");
      depth += token().is("{") ? 1 : token().is("}") ? -1 : 0;
    }
  }

  void declaration() {
    external_ = false;
    while (take(".visible") || take(".extern") || take(".weak") || take(".common")) {
      external_ = tokens_[position_ - 1].is(".extern") || external_;
    }
    if (take(".file")) {
      const uint32_t number = static_cast<uint32_t>(std::stoul(std::string(token().text)));
      const std::string_view quoted = tokens_[position_ + 1].text;
      module_.files[number] = std::string(quoted.substr(1, quoted.size() - 2));
      skip_line();
    } else if (take(".section")) {
      ++position_;
      skip_braces();
    } else if (token().is(".entry") || token().is(".func")) {
      function();
    } else if (const auto space = space_of(token())) {
      ++position_;
      do {
        Variable variable = parse_variable(tokens_, position_, *space);
        variable.external = external_;
        module_.variables[variable.name] = std::move(variable);
      } while (take(","));
      expect(";");
    } else if (token().is(";")) {
      ++position_;
    } else if (token().text.starts_with('.')) {
      skip_line();  // .version, .target, .address_size, .pragma, .alias
    } else {
      syntax_error(token(), "expected a declaration");
    }
  }

  std::vector<Variable> parameter_list() {
    std::vector<Variable> list;
    if (!take("(")) return list;
    while (!take(")")) {
      if (!take(".param") && !take(".reg")) syntax_error(token(), "expected .param");
      list.push_back(parse_variable(tokens_, position_, Space::kParam));
      take(",");
    }
    return list;
  }

  void function() {
    Function function;
    function.entry = take(".entry");
    if (!function.entry) {
      expect(".func");
      function.results = parameter_list();
    }
    function.name = std::string(tokens_[position_++].text);
    function.parameters = parameter_list();
    directives(function);
    if (!take(";")) {
      function.defined = true;
      function.body_begin = position_ + 1;
      skip_braces();
      function.body_end = position_ - 1;
    }
    Function& known = module_.functions[function.name];
    if (function.defined || !known.defined) known = std::move(function);
  }

  void directives(Function& function) {
    while (!token().is(";") && !token().is("{")) {
      if (token().kind == Token::Kind::kEnd) syntax_error(token(), "function without a body");
      const bool max_threads = token().is(".maxntid") || token().is(".reqntid");
      ++position_;
      if (!max_threads) continue;
      function.max_threads = 1;
      do {
        function.max_threads *= static_cast<uint32_t>(parse_literal(tokens_, position_, 4));
      } while (take(","));
    }
  }

  ParsedModule& module_;
  const std::vector<Token>& tokens_;
  size_t position_ = 0;
  bool external_ = false;
};

// One element of an initialiser: a literal, or "symbol", "symbol+4", "generic(symbol)".
void initial_element(const std::vector<Token>& tokens, size_t& position, uint32_t bytes, Variable& variable) {
  const size_t offset = variable.initial.size();
  variable.initial.resize(offset + bytes);
  if (tokens[position].kind != Token::Kind::kWord) {
    const uint64_t bits = parse_literal(tokens, position, bytes);
    std::memcpy(variable.initial.data() + offset, &bits, bytes);
    return;
  }
  if (bytes != 8) syntax_error(tokens[position], "an address needs an element of 64 bits");
  const bool generic = tokens[position].is("generic");
  if (generic) position += 2;
  Variable::Pointer pointer{static_cast<uint32_t>(offset), std::string(tokens[position++].text), 0};
  if (generic) ++position;
  if (tokens[position].is("+")) pointer.addend = static_cast<int64_t>(parse_literal(tokens, ++position, 8));
  variable.pointers.push_back(std::move(pointer));
}

void initializer(const std::vector<Token>& tokens, size_t& position, uint32_t bytes, Variable& variable) {
  if (!tokens[position].is("{")) return initial_element(tokens, position, bytes, variable);
  ++position;
  while (!tokens[position].is("}")) {
    initializer(tokens, position, bytes, variable);
    if (tokens[position].is(",")) ++position;
  }
  ++position;
}

}  // namespace

void syntax_error(const Token& token, const std::string& what) {
  throw Error("syntax",
              "PTX line " + std::to_string(token.line) + ": " + what + " at '" + std::string(token.text) + "'");
}

uint32_t type_bytes(std::string_view type) {
  static const std::map<std::string_view, uint32_t> sizes = {
      {"b8", 1},   {"u8", 1},  {"s8", 1},    {"b16", 2},    {"u16", 2},  {"s16", 2},  {"f16", 2},
      {"bf16", 2}, {"b32", 4}, {"u32", 4},   {"s32", 4},    {"f32", 4},  {"b64", 8},  {"u64", 8},
      {"s64", 8},  {"f64", 8}, {"f16x2", 4}, {"bf16x2", 4}, {"tf32", 4}, {"b128", 16}};
  if (type.starts_with('.')) type.remove_prefix(1);
  const auto found = sizes.find(type);
  return found == sizes.end() ? 0 : found->second;
}

uint64_t parse_literal(const std::vector<Token>& tokens, size_t& position, uint32_t bytes) {
  const bool negative = tokens[position].is("-");
  if (negative || tokens[position].is("+")) ++position;
  const Token& token = tokens[position++];
  if (token.kind != Token::Kind::kNumber) syntax_error(token, "expected a number");
  std::string text(token.text);
  const std::string prefix = text.substr(0, 2);
  uint64_t bits = 0;
  size_t used = 0;
  try {
    if (prefix == "0f" || prefix == "0F" || prefix == "0d" || prefix == "0D") {
      bits = std::stoull(text.substr(2), &used, 16);
      used += 2;
      if (negative) bits ^= uint64_t{1} << (std::tolower(prefix[1]) == 'f' ? 31 : 63);
    } else if (text.find('.') != std::string::npos) {
      const double value = negative ? -std::stod(text, &used) : std::stod(text, &used);
      const float narrow = static_cast<float>(value);
      bits = bytes == 4 ? std::bit_cast<uint32_t>(narrow) : std::bit_cast<uint64_t>(value);
    } else {
      const bool binary = prefix == "0b" || prefix == "0B";
      bits = binary ? std::stoull(text.substr(2), &used, 2) : std::stoull(text, &used, 0);
      used += binary ? 2 : 0;
      if (used < text.size() && text[used] == 'U') ++used;
      if (negative) bits = 0 - bits;
    }
  } catch (const std::logic_error&) {
    syntax_error(token, "not a number");
  }
  if (used != text.size()) syntax_error(token, "not a number");
  return bits;
}

Variable parse_variable(const std::vector<Token>& tokens, size_t& position, Space space) {
  Variable variable;
  variable.space = space;
  uint32_t element = 0, align = 0;
  bool pointer_attributes = false;  // ".ptr .global .align 4" speaks of what a parameter points to
  for (; tokens[position].text.starts_with('.'); ++position) {
    const Token& word = tokens[position];
    if (word.is(".align")) {
      const auto value = static_cast<uint32_t>(std::stoul(std::string(tokens[++position].text)));
      if (!pointer_attributes) align = value;
    } else if (word.is(".v2") || word.is(".v4")) {
      syntax_error(word, "vector variables are not known");
    } else if (word.is(".attribute")) {  // (.managed): all device memory is
      while (!tokens[position].is(")")) ++position;
    } else if (word.is(".ptr")) {
      pointer_attributes = true;
    } else if (const uint32_t bytes = type_bytes(word.text)) {
      element = bytes;
    }
  }
  if (element == 0) syntax_error(tokens[position], "variable without a type");
  variable.name = std::string(tokens[position++].text);
  variable.align = align ? align : element;
  variable.size = element;
  while (tokens[position].is("[")) {
    const bool open = tokens[++position].is("]");
    variable.size = open ? 0 : variable.size * static_cast<uint32_t>(parse_literal(tokens, position, 4));
    ++position;
  }
  if (tokens[position].is("=")) {
    initializer(tokens, ++position, element, variable);
    if (variable.size == 0) variable.size = static_cast<uint32_t>(variable.initial.size());
    variable.initial.resize(variable.size);
  }
  return variable;
}

ParsedModule parse_module(std::string_view ptx) {
  ParsedModule module;
  module.text = std::make_unique<std::string>(ptx);
  module.tokens = tokenize(*module.text);
  ModuleParser(module).run();
  return module;
}

SharedLayout lay_out_shared(const ParsedModule& module, const Function& entry) {
  SharedLayout layout;
  std::set<std::string_view> seen;
  std::vector<const Function*> todo = {&entry};
  std::vector<Variable> variables;
  while (!todo.empty()) {
    const Function& function = *todo.back();
    todo.pop_back();
    for (size_t i = function.body_begin; i < function.body_end; ++i) {
      const Token& token = module.tokens[i];
      if (token.kind != Token::Kind::kWord || token.text[0] == '%') continue;
      if (token.text == ".shared") {
        size_t position = i + 1;
        variables.push_back(parse_variable(module.tokens, position, Space::kShared));
      } else if (const auto callee = module.functions.find(token.text); callee != module.functions.end()) {
        if (seen.insert(token.text).second) todo.push_back(&callee->second);
      } else if (const auto known = module.variables.find(token.text); known != module.variables.end()) {
        if (known->second.space == Space::kShared && seen.insert(token.text).second) variables.push_back(known->second);
      }
    }
  }
  uint32_t dynamic_align = 16;
  for (const Variable& variable : variables) {
    if (variable.size == 0) dynamic_align = std::max(dynamic_align, variable.align);
    if (variable.size == 0) continue;
    layout.static_bytes = (layout.static_bytes + variable.align - 1) / variable.align * variable.align;
    layout.offsets[variable.name] = layout.static_bytes;
    layout.static_bytes += variable.size;
  }
  if (layout.static_bytes % dynamic_align != 0) {
    const bool has_dynamic =
        std::any_of(variables.begin(), variables.end(), [](const Variable& v) { return v.size == 0; });
    if (has_dynamic) layout.static_bytes += dynamic_align - layout.static_bytes % dynamic_align;
  }
  for (const Variable& variable : variables) {
    if (variable.size == 0) layout.offsets[variable.name] = layout.static_bytes;
  }
  return layout;
}

}  // namespace ptxsim
