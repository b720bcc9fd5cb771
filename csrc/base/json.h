// JSON from untrusted files: bounded depth and size, no duplicate keys, errors as Error(kCheckpoint).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace eagle31rt {

using Json = nlohmann::json;

struct JsonLimits {
  int max_depth = 16;              // nested objects and arrays
  int64_t max_values = 1'000'000;  // values and keys; a parsed value takes up to 100 bytes
};

// The text must be one JSON object, in UTF-8, with nothing after it. `source` names it in messages.
Json parse_json_object(std::string_view text, const std::string& source, const JsonLimits& limits = {});

// The same for a large object: each member of the object `within` (a key of the outermost; empty: the outermost itself)
// is given to `visit` once it is read, and none is kept: a name that comes twice is for `visit` to refuse. Returns the
// rest, in which `within` is then empty.
using JsonVisitor = std::function<void(const std::string& name, const Json& value)>;
Json visit_json_members(std::string_view text, const std::string& source, const JsonLimits& limits,
                        std::string_view within, const JsonVisitor& visit);

// For messages: text from a file in double quotes, everything but printable ASCII escaped, cut after 100 bytes.
std::string quote(std::string_view text);
// For messages: a value as JSON, in the same safe form without the quotes.
std::string describe(const Json& value);

}  // namespace eagle31rt
