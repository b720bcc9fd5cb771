#include "base/json.h"

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

// Builds values itself: nlohmann-json's own parser bounds neither depth nor size and lets the last of two equal keys
// win, and a second pass that checks would take as long again, seconds for the headers of a model with 10^5 tensors.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(const std::string& source, const JsonLimits& limits) : source_(source), limits_(limits) {}
  // Gives the members of the object `within` (empty: of the outermost) to `visit` instead of keeping them.
  Reader(const std::string& source, const JsonLimits& limits, std::string_view within, const JsonVisitor& visit)
      : source_(source), limits_(limits), within_(within), visit_(&visit) {}

  Json take() { return std::move(root_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t& value) override { return scalar(std::move(value)); }
  bool start_object(size_t /*size*/) override {
    open(Json::object());
    const bool streamed = within_.empty() ? open_.size() == 1 : open_.size() == 2 && outer_key_ == within_;
    if (visit_ != nullptr && streamed && open_.front()->is_object()) members_ = open_.back();
    return true;
  }
  bool start_array(size_t /*size*/) override {
    open(Json::array());
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    count();
    if (open_.back() == members_) {
      member_name_ = name;
      slot_ = &member_;
      return true;
    }
    const auto [place, added] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    E31_CHECK(added, kCheckpoint, source_, " has the key ", quote(name), " twice; remove one");
    slot_ = &place->second;
    if (open_.size() == 1) outer_key_ = name;
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/, const Json::exception& error) override {
    const std::string_view text = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const size_t prefix = text.find("] ");
    fail(ErrorCode::kCheckpoint, source_,
         " is not valid JSON: ", printable(prefix == text.npos ? text : text.substr(prefix + 2), 2 * kMessageBytes));
  }

 private:
  bool scalar(Json value) {
    put(std::move(value));
    visit_member();
    return true;
  }
  void open(Json container) {
    E31_CHECK(open_.size() < static_cast<size_t>(limits_.max_depth), kCheckpoint, source_, " nests JSON deeper than ",
              limits_.max_depth, " levels; the file is broken");
    open_.push_back(put(std::move(container)));
  }
  bool close() {
    if (open_.back() == members_) members_ = nullptr;
    open_.pop_back();
    visit_member();
    return true;
  }
  // A value stays where it is put as long as it is open: what holds it only grows after it is closed.
  Json* put(Json value) {
    count();
    if (open_.empty()) return &(root_ = std::move(value));
    if (!open_.back()->is_array()) return &(*slot_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  void visit_member() {
    if (!open_.empty() && open_.back() == members_) (*visit_)(member_name_, member_);
  }
  void count() {
    E31_CHECK(++num_values_ <= limits_.max_values, kCheckpoint, source_, " holds more than ", limits_.max_values,
              " JSON values; the file is broken");
  }

  const std::string& source_;
  const JsonLimits& limits_;
  std::string_view within_;
  const JsonVisitor* visit_ = nullptr;
  Json root_;
  std::vector<Json*> open_;  // objects and arrays, from the outermost
  Json* slot_ = nullptr;     // of the key that was read last
  std::string outer_key_;    // the last one of the outermost object
  Json* members_ = nullptr;  // the object whose members are visited, while it is open
  Json member_;              // the one that is being read
  std::string member_name_;
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
  Reader reader(source, limits);
  Json::sax_parse(text.begin(), text.end(), &reader);
  Json result = reader.take();
  E31_CHECK(result.is_object(), kCheckpoint, source, " must hold one JSON object, not ", describe(result));
  return result;
}

Json visit_json_members(std::string_view text, const std::string& source, const JsonLimits& limits,
                        std::string_view within, const JsonVisitor& visit) {
  Reader reader(source, limits, within, visit);
  Json::sax_parse(text.begin(), text.end(), &reader);
  Json result = reader.take();
  E31_CHECK(result.is_object(), kCheckpoint, source, " must hold one JSON object, not ", describe(result));
  return result;
}

}  // namespace eagle31rt
