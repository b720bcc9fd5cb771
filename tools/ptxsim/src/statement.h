// One PTX statement: opcode, modifiers, operands, before names are resolved.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lexer.h"

namespace ptxsim {

struct Operand {
  enum class Kind : uint8_t { kName, kNumber, kAddress, kVector, kList };  // list: (a, b) of a call
  Kind kind = Kind::kName;
  bool negated = false;   // !p
  size_t token = 0;       // first token; of a number, its sign or digits
  std::string_view name;  // kName; base of kAddress, empty if it is a number
  int64_t offset = 0;     // kAddress
  std::vector<Operand> elements;
};

// The words of an opcode after the first, taken one by one by the function that decodes it. What is left over at the
// end is a modifier that this interpreter does not know.
class Modifiers {
 public:
  explicit Modifiers(std::string_view opcode);

  const std::string& base() const { return base_; }
  bool take(std::string_view word);
  // Takes the first of the words that the opcode has; an empty string if it has none.
  std::string take_any(std::initializer_list<std::string_view> words);
  // Takes the first word that is left and is the name of a type or "pred"; empty if none.
  std::string take_type();
  bool has(std::string_view word) const;
  bool empty() const { return words_.empty(); }

 private:
  std::string base_;
  std::vector<std::string> words_;
};

struct Statement {
  size_t first_token = 0, last_token = 0;  // the last is its ';'
  std::string_view opcode;
  std::string_view guard;  // predicate, or empty
  bool guard_negated = false;
  std::vector<Operand> operands;  // "d|p" gives two
};

// Parses the statement that begins at tokens[position], and moves after its ';'. Throws Error("syntax").
Statement parse_statement(const std::vector<Token>& tokens, size_t& position);

}  // namespace ptxsim
