// What the fuzz targets share. A finding is a crash, a sanitizer report, an exception other than Error, or an Error
// that blames the runtime itself.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "eagle31rt/status.h"
#include "model/rope_angles.h"

namespace eagle31rt {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

template <typename Body>
int run_untrusted(Body body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.code() != ErrorCode::kInternal && error.code() != ErrorCode::kResource);
    // Messages go to terminals and to Python as UTF-8: nothing of the file may pass through unescaped.
    for (const char* c = error.what(); *c != '\0'; ++c) require(*c >= 0x20 && *c < 0x7f);
  }
  return 0;
}

// Input up to the first zero byte, which JSON text never holds, and the rest.
inline std::string_view take_text(std::string_view& input) {
  const size_t end = input.find('\0');
  const std::string_view text = input.substr(0, end);
  input.remove_prefix(end == input.npos ? input.size() : end + 1);
  return text;
}

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Whatever rope config is accepted must give finite angles.
inline void check_rope(const RopeConfig& config) {
  const RopeAngles angles(config);
  const int32_t positions[] = {0, 1, 131071, INT32_MAX};
  std::vector<float> cosine(4 * static_cast<size_t>(angles.half_dim())), sine(cosine.size());
  angles.compute(positions, 4, cosine.data(), sine.data());
  for (const float value : cosine) require(std::isfinite(value));
  for (const float value : sine) require(std::isfinite(value));
}

}  // namespace eagle31rt
