// Stop strings in a stream of bytes, wherever the stream is cut.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eagle31rt {

// The stop string that ends first wins; of those that end at the same byte, the first in the list.
// Every string has its own automaton (Knuth, Morris, Pratt): its state is the length of the longest beginning of the
// string with which the stream ends, so a byte costs one or two comparisons a string.
class StopMatcher {
 public:
  // stops: not empty strings. include: the stop string itself is part of the text.
  StopMatcher(const std::vector<std::string>& stops, bool include);

  // Appends to `text` the bytes that no stop string can take back any more. may_stop false: a string that ends in these
  // bytes does not count. Returns the index of the string that ended; what follows it is dropped.
  std::optional<size_t> add(std::string_view bytes, bool may_stop, std::string& text);
  // The end without a stop string: appends what was held back.
  void finish(std::string& text);

 private:
  struct Automaton {
    std::string stop;
    // failure[n]: the longest proper beginning of `stop` with which its first n bytes end. [stop.size() + 1]
    std::vector<size_t> failure;
    size_t state = 0;
    void advance(char byte);
  };

  std::vector<Automaton> automata_;
  bool include_;
  std::string held_;  // the bytes of the longest match under way
};

}  // namespace eagle31rt
