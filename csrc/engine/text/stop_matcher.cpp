#include "engine/text/stop_matcher.h"

#include <algorithm>

namespace eagle31rt {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include) : include_(include) {
  for (const std::string& stop : stops) {
    std::vector<size_t> failure(stop.size() + 1, 0);
    for (size_t n = 2; n <= stop.size(); ++n) {
      size_t length = failure[n - 1];
      while (length > 0 && stop[length] != stop[n - 1]) length = failure[length];
      failure[n] = stop[length] == stop[n - 1] ? length + 1 : 0;
    }
    automata_.push_back({.stop = stop, .failure = std::move(failure)});
  }
}

void StopMatcher::Automaton::advance(char byte) {
  if (state == stop.size()) state = failure[state];
  while (state > 0 && stop[state] != byte) state = failure[state];
  if (stop[state] == byte) ++state;
}

std::optional<size_t> StopMatcher::add(std::string_view bytes, bool may_stop, std::string& text) {
  for (const char byte : bytes) {
    held_ += byte;
    size_t num_held = 0;
    for (Automaton& automaton : automata_) {
      automaton.advance(byte);
      if (automaton.state < automaton.stop.size()) {
        num_held = std::max(num_held, automaton.state);
      } else if (may_stop) {
        const size_t num_taken_back = include_ ? 0 : automaton.stop.size();
        text.append(held_, 0, held_.size() - num_taken_back);
        held_.clear();
        return &automaton - automata_.data();
      } else {
        num_held = std::max(num_held, automaton.failure[automaton.state]);
      }
    }
    if (include_) num_held = 0;
    text.append(held_, 0, held_.size() - num_held);
    held_.erase(0, held_.size() - num_held);
  }
  return std::nullopt;
}

void StopMatcher::finish(std::string& text) {
  text += held_;
  held_.clear();
}

}  // namespace eagle31rt
