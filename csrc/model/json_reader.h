// Typed, bounded access to the keys of a JSON object. Every error names the file, the key and the value found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace eagle31rt {

// A view: the Json object must outlive it. A key with the value null counts as absent.
class JsonReader {
 public:
  JsonReader(const Json& object, std::string source, std::string path = "")
      : object_(&object), source_(std::move(source)), path_(std::move(path)) {}

  bool has(const char* key) const { return find(key) != nullptr; }
  const Json* find(const char* key) const;  // nullptr if absent or null
  const Json& object() const { return *object_; }
  const std::string& source() const { return source_; }
  std::string name(const char* key) const;   // "eagle_config.norm_before_fc" (with the quotes)
  std::string value(const char* key) const;  // for messages

  // Required or with a fallback; both ends of a range are included.
  int32_t integer(const char* key, int64_t low, int64_t high) const;
  int32_t integer_or(const char* key, int32_t fallback, int64_t low, int64_t high) const;
  double number(const char* key, double low, double high) const;
  double number_or(const char* key, double fallback, double low, double high) const;
  std::optional<bool> boolean(const char* key) const;
  bool boolean_or(const char* key, bool fallback) const { return boolean(key).value_or(fallback); }
  std::optional<std::string> text(const char* key) const;
  std::optional<JsonReader> child(const char* key) const;  // a nested object

  // One integer or a list of at most max_count.
  std::optional<std::vector<int32_t>> integers(const char* key, size_t max_count, int64_t low, int64_t high) const;
  std::optional<std::vector<std::string>> texts(const char* key, size_t max_count) const;

 private:
  [[noreturn]] void wrong(const char* key, const Json& value, const std::string& wanted) const;
  int32_t to_integer(const char* key, const Json& value, int64_t low, int64_t high) const;

  const Json* object_;
  std::string source_;
  std::string path_;  // "" or "eagle_config."
};

}  // namespace eagle31rt
