#include "model/json_reader.h"

#include <cmath>

#include "base/check.h"

namespace eagle31rt {

const Json* JsonReader::find(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonReader::name(const char* key) const { return concat('"', path_, key, '"'); }

std::string JsonReader::value(const char* key) const {
  const Json* found = find(key);
  return found == nullptr ? "absent" : describe(*found);
}

void JsonReader::wrong(const char* key, const Json& value, const std::string& wanted) const {
  fail(ErrorCode::kCheckpoint, source_, ": ", name(key), " is ", describe(value), "; it must be ", wanted);
}

int32_t JsonReader::to_integer(const char* key, const Json& value, int64_t low, int64_t high) const {
  // As double: exact up to 2^53, and larger values are out of every range that is used here.
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) || std::floor(number) != number) {
    wrong(key, value, concat("an integer from ", low, " to ", high));
  }
  return static_cast<int32_t>(number);
}

int32_t JsonReader::integer(const char* key, int64_t low, int64_t high) const {
  const Json* found = find(key);
  E31_CHECK(found != nullptr, kCheckpoint, source_, " lacks ", name(key));
  return to_integer(key, *found, low, high);
}

int32_t JsonReader::integer_or(const char* key, int32_t fallback, int64_t low, int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double JsonReader::number(const char* key, double low, double high) const {
  const Json* found = find(key);
  E31_CHECK(found != nullptr, kCheckpoint, source_, " lacks ", name(key));
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) wrong(key, *found, concat("a number from ", low, " to ", high));
  return number;
}

double JsonReader::number_or(const char* key, double fallback, double low, double high) const {
  return has(key) ? number(key, low, high) : fallback;
}

std::optional<bool> JsonReader::boolean(const char* key) const {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) wrong(key, *found, "true or false");
  return found->get<bool>();
}

std::optional<std::string> JsonReader::text(const char* key) const {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) wrong(key, *found, "a string");
  return found->get<std::string>();
}

std::optional<JsonReader> JsonReader::child(const char* key) const {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) wrong(key, *found, "an object");
  return JsonReader(*found, source_, path_ + key + ".");
}

std::optional<std::vector<int32_t>> JsonReader::integers(const char* key, size_t max_count, int64_t low,
                                                         int64_t high) const {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_array()) return std::vector<int32_t>{to_integer(key, *found, low, high)};
  if (found->size() > max_count) wrong(key, *found, concat("a list of at most ", max_count, " integers"));
  std::vector<int32_t> result;
  for (const Json& item : *found) result.push_back(to_integer(key, item, low, high));
  return result;
}

std::optional<std::vector<std::string>> JsonReader::texts(const char* key, size_t max_count) const {
  const Json* found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_array() || found->size() > max_count) {
    wrong(key, *found, concat("a list of at most ", max_count, " strings"));
  }
  std::vector<std::string> result;
  for (const Json& item : *found) {
    if (!item.is_string()) wrong(key, item, "a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

}  // namespace eagle31rt
