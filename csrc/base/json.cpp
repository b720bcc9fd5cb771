#include "base/json.h"

#include <unordered_set>
#include <vector>

#include "base/check.h"

namespace eagle31rt {
namespace {

constexpr size_t kMessageBytes = 100;

std::string printable(std::string_view text, size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  if (text.size() > limit) result += "...";
  return result;
}

// Watches a parse: nlohmann-json itself bounds neither depth nor size and lets the last of two equal keys win.
class Watcher {
 public:
  Watcher(const std::string& source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  bool operator()(Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys_.emplace_back();
        E31_CHECK(keys_.size() <= static_cast<size_t>(limits_.max_depth), kCheckpoint, source_,
                  " nests JSON deeper than ", limits_.max_depth, " levels; the file is broken");
        count();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        E31_CHECK(keys_.back().insert(key).second, kCheckpoint, source_, " has the key ", quote(key),
                  " twice; remove one");
        count();
        break;
      }
      case Json::parse_event_t::value:
        count();
        break;
    }
    return true;
  }

 private:
  void count() {
    E31_CHECK(++num_values_ <= limits_.max_values, kCheckpoint, source_, " holds more than ", limits_.max_values,
              " JSON values; the file is broken");
  }

  const std::string& source_;
  const JsonLimits& limits_;
  std::vector<std::unordered_set<std::string>> keys_;  // one set per open object or array
  int64_t num_values_ = 0;
};

}  // namespace

std::string quote(std::string_view text) { return '"' + printable(text, kMessageBytes) + '"'; }

std::string describe(const Json& value) {
  // A container may be large; its size says enough.
  if (value.is_object()) return concat("an object of ", value.size(), " keys");
  if (value.is_array() && value.size() > 16) return concat("a list of ", value.size());
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), kMessageBytes);
}

Json parse_json_object(std::string_view text, const std::string& source, const JsonLimits& limits) {
  Json result;
  Watcher watcher(source, limits);
  try {
    result = Json::parse(text.begin(), text.end(),
                         [&](int, Json::parse_event_t event, Json& value) { return watcher(event, value); });
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCheckpoint, source, " is not valid JSON: ", printable(error.what(), 2 * kMessageBytes));
  }
  E31_CHECK(result.is_object(), kCheckpoint, source, " must hold one JSON object, not ", describe(result));
  return result;
}

}  // namespace eagle31rt
