#include "engine/text/utf8.h"

namespace eagle31rt {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

void Utf8Decoder::begin_character(unsigned char byte, std::string& text) {
  low_ = 0x80;
  high_ = 0xBF;
  if (byte < 0x80) {
    text += static_cast<char>(byte);
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) {  // a continuation, or a lead byte of overlong or too large values only
    text += kReplacement;
    return;
  }
  num_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  if (byte == 0xE0) low_ = 0xA0;
  if (byte == 0xED) high_ = 0x9F;
  if (byte == 0xF0) low_ = 0x90;
  if (byte == 0xF4) high_ = 0x8F;
  pending_ = static_cast<char>(byte);
}

void Utf8Decoder::add(std::string_view bytes, std::string& text) {
  for (const char signed_byte : bytes) {
    const auto byte = static_cast<unsigned char>(signed_byte);
    if (num_missing_ == 0) {
      begin_character(byte, text);
    } else if (byte < low_ || byte > high_) {
      finish(text);
      begin_character(byte, text);
    } else {
      pending_ += signed_byte;
      low_ = 0x80;
      high_ = 0xBF;
      if (--num_missing_ > 0) continue;
      text += pending_;
      pending_.clear();
    }
  }
}

void Utf8Decoder::finish(std::string& text) {
  if (num_missing_ == 0) return;
  text += kReplacement;
  pending_.clear();
  num_missing_ = 0;
}

bool is_valid_utf8(std::string_view text) {
  Utf8Decoder decoder;
  std::string decoded;
  decoder.add(text, decoded);
  decoder.finish(decoded);
  return decoded == text;
}

}  // namespace eagle31rt
