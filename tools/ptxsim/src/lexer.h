// Tokens of PTX text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ptxsim {

struct Token {
  enum class Kind : uint8_t { kWord, kNumber, kString, kPunctuation, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;  // a view of the text that was given to tokenize()
  uint32_t line = 0;      // counted from 1

  bool is(std::string_view expected) const { return kind != Kind::kString && text == expected; }
};

// A word is a name, an opcode with all its modifiers ("ld.global.v4.u32", "cp.async.shared::cta.global"), a directive
// (".reg") or a special register ("%tid.x"). The last token is kEnd. Throws Error("syntax").
std::vector<Token> tokenize(std::string_view ptx);

}  // namespace ptxsim
