// Bytes to valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace eagle31rt {

bool is_valid_utf8(std::string_view text);

// Takes bytes in pieces cut anywhere and gives text in pieces cut between characters. Each maximal part of a character
// that does not go on as it must becomes one U+FFFD (the Unicode standard's practice, that of Python and Rust).
class Utf8Decoder {
 public:
  // Appends to `text` what `bytes` complete; at most 3 bytes stay back.
  void add(std::string_view bytes, std::string& text);
  // The end: an unfinished character becomes U+FFFD.
  void finish(std::string& text);

 private:
  void begin_character(unsigned char byte, std::string& text);

  std::string pending_;  // a character's first bytes, valid so far
  int num_missing_ = 0;  // its bytes to come
  // Bounds of the next byte: the second one decides on overlong forms, surrogates and what lies past U+10FFFF.
  unsigned char low_ = 0x80, high_ = 0xBF;
};

}  // namespace eagle31rt
