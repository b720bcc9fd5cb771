// The two compressions that nvcc uses in fat binaries.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace cudart {

class DecompressionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A raw LZ4 block (nvcc -compress-mode=speed).
std::string decompress_lz4(std::string_view block, size_t size);

// A Zstandard frame (nvcc's default), through libzstd.so.1, looked up when the first such entry is met so that programs
// compiled with --no-compress do without it.
std::string decompress_zstd(std::string_view frame, size_t size);

}  // namespace cudart
