// What each token id says, so that the engine can make text and match stop strings on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eagle31rt {

// The text of a sequence is the bytes of its ids, one after the other, with everything that is no valid UTF-8 replaced
// by U+FFFD as Python's errors="replace" does.
struct TokenTable {
  std::vector<std::string> bytes;  // id -> bytes, any, also parts of a character; ids past the end say nothing
  std::vector<bool> is_special;    // [bytes.size()], or empty for none: ids that skip_special_tokens leaves out
  // Spaces dropped at the very beginning of the output, as decoders in the style of SentencePiece do.
  int32_t num_leading_spaces_dropped = 0;
};

}  // namespace eagle31rt
