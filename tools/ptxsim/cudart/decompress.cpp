#include "decompress.h"

#include <dlfcn.h>

#include <cstdint>

namespace cudart {
namespace {

constexpr size_t kMinimalMatch = 4;
constexpr size_t kExtendedLength = 15;  // a length nibble of this value goes on in further bytes

class Lz4Reader {
 public:
  explicit Lz4Reader(std::string_view block) : block_(block) {}

  bool at_end() const { return position_ == block_.size(); }
  size_t byte() {
    if (at_end()) throw DecompressionError("LZ4 block ends too early");
    return static_cast<uint8_t>(block_[position_++]);
  }
  size_t length(size_t nibble) {
    if (nibble != kExtendedLength) return nibble;
    size_t length = nibble, next;
    do {
      next = byte();
      length += next;
    } while (next == 255);
    return length;
  }
  std::string_view literals(size_t count) {
    if (count > block_.size() - position_) throw DecompressionError("LZ4 block ends too early");
    position_ += count;
    return block_.substr(position_ - count, count);
  }

 private:
  std::string_view block_;
  size_t position_ = 0;
};

}  // namespace

std::string decompress_lz4(std::string_view block, size_t size) {
  std::string result;
  result.reserve(size);
  Lz4Reader reader(block);
  while (!reader.at_end()) {
    const size_t token = reader.byte();
    result += reader.literals(reader.length(token >> 4));
    if (reader.at_end()) break;  // the last sequence has literals only
    const size_t low = reader.byte();
    const size_t offset = low | reader.byte() << 8;
    const size_t length = reader.length(token & 15) + kMinimalMatch;
    if (offset == 0 || offset > result.size()) throw DecompressionError("LZ4 block refers to bytes before its start");
    for (size_t i = 0; i < length; ++i) result += result[result.size() - offset];
  }
  if (result.size() != size) throw DecompressionError("LZ4 block has the wrong size");
  return result;
}

std::string decompress_zstd(std::string_view frame, size_t size) {
  using Decompress = size_t (*)(void*, size_t, const void*, size_t);
  static void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto decompress = library ? reinterpret_cast<Decompress>(dlsym(library, "ZSTD_decompress")) : nullptr;
  if (!decompress) {
    throw DecompressionError(
        "the program's PTX is compressed and libzstd.so.1 is not installed: install it, or compile with "
        "nvcc --no-compress");
  }
  std::string result(size, '\0');
  if (decompress(result.data(), size, frame.data(), frame.size()) != size) {
    throw DecompressionError("the program's compressed PTX is damaged");
  }
  return result;
}

}  // namespace cudart
