#include "lexer.h"

#include <cctype>
#include <string>

#include "ptxsim.h"

namespace ptxsim {
namespace {

bool starts_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

bool continues_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { tokens_.reserve(text.size() / 4); }

  std::vector<Token> run() {
    while (skip_blanks()) next_token();
    tokens_.push_back({Token::Kind::kEnd, text_.substr(text_.size()), line_});
    return std::move(tokens_);
  }

 private:
  char at(size_t position) const { return position < text_.size() ? text_[position] : '\0'; }

  // Moves past white space and comments; false at the end of the text.
  bool skip_blanks() {
    while (position_ < text_.size()) {
      const char c = text_[position_];
      if (c == '\n') ++line_;
      if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
        ++position_;
      } else if (c == '/' && at(position_ + 1) == '/') {
        while (position_ < text_.size() && text_[position_] != '\n') ++position_;
      } else if (c == '/' && at(position_ + 1) == '*') {
        const size_t end = text_.find("*/", position_ + 2);
        if (end == std::string_view::npos) fail("comment without an end");
        for (; position_ < end + 2; ++position_) line_ += text_[position_] == '\n';
      } else {
        return true;
      }
    }
    return false;
  }

  void next_token() {
    const size_t begin = position_;
    const char c = text_[position_];
    auto kind = Token::Kind::kPunctuation;
    if (c == '"') {
      kind = Token::Kind::kString;
      const size_t end = text_.find('"', begin + 1);
      if (end == std::string_view::npos) fail("string without an end");
      position_ = end + 1;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      kind = Token::Kind::kNumber;
      while (std::isalnum(static_cast<unsigned char>(at(position_))) || at(position_) == '.' || is_exponent_sign())
        ++position_;
    } else if (starts_word(c)) {
      kind = Token::Kind::kWord;
      ++position_;
      while (continues_word(at(position_)) || is_double_colon()) {
        if (c == '.' && at(position_) == '.') break;  // ".reg.b32" is two directives
        position_ += at(position_) == ':' ? 2 : 1;
      }
    } else {
      if (std::string_view("{}[]()<>,;:+-|!@=*&~?").find(c) == std::string_view::npos) {
        fail(std::string("unexpected character '") + c + "'");
      }
      ++position_;
    }
    tokens_.push_back({kind, text_.substr(begin, position_ - begin), line_});
  }

  bool is_double_colon() const { return at(position_) == ':' && at(position_ + 1) == ':'; }

  // "1.5e-3" is one number, "0xe-3" (hexadecimal) is not.
  bool is_exponent_sign() const {
    const char sign = at(position_), before = at(position_ - 1);
    if ((sign != '-' && sign != '+') || (before != 'e' && before != 'E')) return false;
    const size_t dot = text_.rfind('.', position_);
    return dot != std::string_view::npos && position_ - dot < 24 &&
           text_.substr(dot, position_ - dot).find_first_of(" ,[{") == std::string_view::npos;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("syntax", "PTX line " + std::to_string(line_) + ": " + what);
  }

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view ptx) { return Lexer(ptx).run(); }

}  // namespace ptxsim
