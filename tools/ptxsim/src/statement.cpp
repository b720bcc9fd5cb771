#include "statement.h"

#include <algorithm>

#include "parser.h"

namespace ptxsim {
namespace {

void expect(const std::vector<Token>& tokens, size_t& position, std::string_view text) {
  if (!tokens[position].is(text)) syntax_error(tokens[position], "expected '" + std::string(text) + "'");
  ++position;
}

Operand parse_operand(const std::vector<Token>& tokens, size_t& position);

std::vector<Operand> parse_elements(const std::vector<Token>& tokens, size_t& position, std::string_view end) {
  std::vector<Operand> elements;
  while (!tokens[position].is(end)) {
    elements.push_back(parse_operand(tokens, position));
    if (!tokens[position].is(end)) expect(tokens, position, ",");
  }
  ++position;
  return elements;
}

Operand parse_address(const std::vector<Token>& tokens, size_t& position) {
  Operand operand;
  operand.kind = Operand::Kind::kAddress;
  operand.token = position;
  if (tokens[position].kind == Token::Kind::kWord) operand.name = tokens[position++].text;
  while (!tokens[position].is("]")) {
    if (tokens[position].is(",")) {  // the coordinates of a tensor copy: [map, {x, y}]
      operand.elements.push_back(parse_operand(tokens, ++position));
      continue;
    }
    if (tokens[position].is("+") && tokens[position + 1].is("-")) ++position;
    operand.offset += static_cast<int64_t>(parse_literal(tokens, position, 8));
  }
  ++position;
  return operand;
}

Operand parse_operand(const std::vector<Token>& tokens, size_t& position) {
  Operand operand;
  if (tokens[position].is("!")) {
    operand.negated = true;
    ++position;
  }
  operand.token = position;
  const Token& token = tokens[position];
  if (token.is("[")) return parse_address(tokens, ++position);
  if (token.is("{") || token.is("(")) {
    operand.kind = token.is("{") ? Operand::Kind::kVector : Operand::Kind::kList;
    operand.elements = parse_elements(tokens, ++position, token.is("{") ? "}" : ")");
  } else if (token.kind == Token::Kind::kWord) {
    operand.name = token.text;
    ++position;
    if (tokens[position].is("+")) operand.offset = static_cast<int64_t>(parse_literal(tokens, ++position, 8));
  } else {
    operand.kind = Operand::Kind::kNumber;
    parse_literal(tokens, position, 8);
  }
  return operand;
}

}  // namespace

Modifiers::Modifiers(std::string_view opcode) {
  size_t begin = 0;
  while (begin <= opcode.size()) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    words_.emplace_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  base_ = words_.front();
  words_.erase(words_.begin());
}

bool Modifiers::take(std::string_view word) {
  const auto found = std::find(words_.begin(), words_.end(), word);
  if (found == words_.end()) return false;
  words_.erase(found);
  return true;
}

std::string Modifiers::take_any(std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (take(word)) return std::string(word);
  }
  return {};
}

std::string Modifiers::take_type() {
  const auto is_type = [](const std::string& word) { return word == "pred" || type_bytes(word) != 0; };
  const auto found = std::find_if(words_.begin(), words_.end(), is_type);
  if (found == words_.end()) return {};
  const std::string type = *found;
  words_.erase(found);
  return type;
}

bool Modifiers::has(std::string_view word) const {
  return std::find(words_.begin(), words_.end(), word) != words_.end();
}

Statement parse_statement(const std::vector<Token>& tokens, size_t& position) {
  Statement statement;
  statement.first_token = position;
  if (tokens[position].is("@")) {
    statement.guard_negated = tokens[++position].is("!");
    position += statement.guard_negated ? 1 : 0;
    statement.guard = tokens[position++].text;
  }
  if (tokens[position].kind != Token::Kind::kWord) syntax_error(tokens[position], "expected an opcode");
  statement.opcode = tokens[position++].text;
  while (!tokens[position].is(";")) {
    statement.operands.push_back(parse_operand(tokens, position));
    if (tokens[position].is("|") || tokens[position].is(","))
      ++position;
    else if (!tokens[position].is(";"))
      syntax_error(tokens[position], "expected ',' or ';'");
  }
  statement.last_token = position++;
  return statement;
}

}  // namespace ptxsim
