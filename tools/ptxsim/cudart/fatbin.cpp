#include "fatbin.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "decompress.h"

namespace cudart {
namespace {

// The format is not documented; the fields below are those that nvcc 13.0 was seen to write. All integers
// little-endian.
constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kContainerMagic = 0xba55ed50;
constexpr uint16_t kKindPtx = 1;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchitectureSpecific = 0x100000;  // compute_90a
constexpr uint64_t kFlagFamilySpecific = 0x200000;        // compute_100f

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const std::byte* data;
  const void* prelinked;
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t payload_bytes;
};

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes;  // of the payload; the rest is padding
  uint32_t options_offset;
  uint32_t unknown;
  uint32_t architecture;
  uint64_t name;
  uint64_t flags;
  uint64_t reserved;
  uint64_t uncompressed_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

// Payloads end in padding, texts in a zero byte.
std::string until_zero(std::string text) {
  const size_t end = text.find('\0');
  if (end != std::string::npos) text.resize(end);
  return text;
}

std::string read_text(const EntryHeader& header, const std::byte* payload) {
  const std::string_view bytes(reinterpret_cast<const char*>(payload), header.payload_bytes);
  if (header.flags & kFlagZstd) {
    return until_zero(decompress_zstd(bytes.substr(0, header.compressed_bytes), header.uncompressed_bytes));
  }
  if (header.flags & kFlagLz4) {
    return until_zero(decompress_lz4(bytes.substr(0, header.compressed_bytes), header.uncompressed_bytes));
  }
  return until_zero(std::string(bytes));
}

void read_entry(const std::byte* at, const EntryHeader& header, FatBinary& result) {
  if (header.kind != kKindPtx) {
    result.has_machine_code = true;
    return;
  }
  Image image;
  image.architecture = static_cast<int>(header.architecture);
  if (header.flags & kFlagArchitectureSpecific) image.suffix = 'a';
  if (header.flags & kFlagFamilySpecific) image.suffix = 'f';
  try {
    image.ptx = read_text(header, at + header.header_bytes);
    result.images.push_back(std::move(image));
  } catch (const DecompressionError& error) {
    result.errors.push_back(error.what());
  }
}

void read_container(const std::byte* start, const ContainerHeader& container, FatBinary& result) {
  const std::byte* at = start + container.header_bytes;
  const std::byte* end = at + container.payload_bytes;
  while (at + sizeof(EntryHeader) <= end) {
    EntryHeader header;
    std::memcpy(&header, at, sizeof(header));
    read_entry(at, header, result);
    at += header.header_bytes + header.payload_bytes;
  }
}

bool runs_on(const Image& image, int compute_capability) {
  if (image.suffix == 'a') return image.architecture == compute_capability;
  if (image.suffix == 'f' && image.architecture / 10 != compute_capability / 10) return false;
  return image.architecture <= compute_capability;
}

int specialisation(const Image& image) { return image.suffix == 'a' ? 2 : image.suffix == 'f' ? 1 : 0; }

}  // namespace

FatBinary read_fat_binary(const void* pointer) {
  FatBinary result;
  Wrapper wrapper;
  std::memcpy(&wrapper, pointer, sizeof(wrapper));
  ContainerHeader container;
  std::memcpy(&container, wrapper.data, sizeof(container));
  if (wrapper.magic != kWrapperMagic || container.magic != kContainerMagic) {
    result.errors.push_back("the program's fat binary has a format that this version of ptxsim does not know");
    return result;
  }
  read_container(wrapper.data, container, result);
  return result;
}

FatBinary read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  FatBinary result;
  if (path.ends_with(".ptx")) {
    result.images.push_back({0, 0, bytes});
    return result;
  }
  const std::string_view magic(reinterpret_cast<const char*>(&kContainerMagic), sizeof(kContainerMagic));
  for (size_t at = bytes.find(magic); at != std::string::npos; at = bytes.find(magic, at + 1)) {
    ContainerHeader container;
    if (bytes.size() - at < sizeof(container)) break;
    std::memcpy(&container, bytes.data() + at, sizeof(container));
    const bool plausible = container.version == 1 && container.header_bytes == sizeof(container) &&
                           container.payload_bytes <= bytes.size() - at - sizeof(container);
    if (plausible) read_container(reinterpret_cast<const std::byte*>(bytes.data()) + at, container, result);
  }
  return result;
}

const Image* choose_image(const std::vector<Image>& images, int compute_capability) {
  const Image* best = nullptr;
  for (const Image& image : images) {
    if (!runs_on(image, compute_capability)) continue;
    if (!best || image.architecture > best->architecture ||
        (image.architecture == best->architecture && specialisation(image) > specialisation(*best))) {
      best = &image;
    }
  }
  return best;
}

}  // namespace cudart
