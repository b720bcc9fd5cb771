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

// Reads the text once before it is parsed: nlohmann-json itself bounds neither depth nor size and lets the last of two
// equal keys win. Its parser with a callback would do in one pass, but searches an object through at the end of each
// value in it: seconds for the header of a model with 10^5 tensors.
class Watcher : public nlohmann::json_sax<Json> {
 public:
  Watcher(const std::string& source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  bool null() override { return count(); }
  bool boolean(bool /*value*/) override { return count(); }
  bool number_integer(number_integer_t /*value*/) override { return count(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return count(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return count(); }
  bool string(string_t& /*value*/) override { return count(); }
  bool binary(binary_t& /*value*/) override { return count(); }
  bool start_object(size_t /*size*/) override { return start(); }
  bool start_array(size_t /*size*/) override { return start(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    E31_CHECK(keys_.back().insert(name).second, kCheckpoint, source_, " has the key ", quote(name),
              " twice; remove one");
    return count();
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/, const Json::exception& error) override {
    fail(ErrorCode::kCheckpoint, source_, " is not valid JSON: ", printable(error.what(), 2 * kMessageBytes));
  }

 private:
  bool start() {
    keys_.emplace_back();
    E31_CHECK(keys_.size() <= static_cast<size_t>(limits_.max_depth), kCheckpoint, source_, " nests JSON deeper than ",
              limits_.max_depth, " levels; the file is broken");
    return count();
  }
  bool end() {
    keys_.pop_back();
    return true;
  }
  bool count() {
    E31_CHECK(++num_values_ <= limits_.max_values, kCheckpoint, source_, " holds more than ", limits_.max_values,
              " JSON values; the file is broken");
    return true;
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
  Watcher watcher(source, limits);
  Json::sax_parse(text.begin(), text.end(), &watcher);
  Json result = Json::parse(text.begin(), text.end());
  E31_CHECK(result.is_object(), kCheckpoint, source, " must hold one JSON object, not ", describe(result));
  return result;
}

}  // namespace eagle31rt
