#include "model/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

namespace eagle31rt {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of the format
constexpr size_t kMaxRank = 32;
// header -> tensor -> shape is three levels; a tensor takes about ten values.
constexpr JsonLimits kHeaderLimits{.max_depth = 3, .max_values = 4'000'000};

struct StoredType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;  // none: the runtime cannot use it
};

constexpr StoredType kStoredTypes[] = {
    {"F32", 32, DType::kFloat32},     {"BF16", 16, DType::kBFloat16}, {"F16", 16, DType::kFloat16},
    {"I32", 32, DType::kInt32},       {"I64", 64, DType::kInt64},     {"U8", 8, DType::kUInt8},
    {"BOOL", 8, DType::kBool},        {"F64", 64, std::nullopt},      {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},        {"U32", 32, std::nullopt},      {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},        {"I8", 8, std::nullopt},        {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},     {"F8_E8M0", 8, std::nullopt},   {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},   {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

class HeaderParser {
 public:
  HeaderParser(const std::byte* data, uint64_t num_bytes, const std::string& source) : source_(source) {
    E31_CHECK(num_bytes >= kLengthBytes, kCheckpoint, source, " has ", num_bytes,
              " bytes, too few for a safetensors file; download it again");
    constexpr std::string_view kPointer = "version https://git-lfs";
    E31_CHECK(!std::string_view(reinterpret_cast<const char*>(data), num_bytes).starts_with(kPointer), kCheckpoint,
              source, " is a Git LFS pointer and not the file itself; run git lfs pull, or download it again");
    uint64_t header_bytes = 0;
    for (uint64_t i = 0; i < kLengthBytes; ++i) header_bytes |= std::to_integer<uint64_t>(data[i]) << (8 * i);
    E31_CHECK(header_bytes <= kMaxHeaderBytes, kCheckpoint, source, " states a header of ", header_bytes,
              " bytes, over the format's limit of ", kMaxHeaderBytes, "; it is not a safetensors file");
    E31_CHECK(header_bytes <= num_bytes - kLengthBytes, kCheckpoint, source, " states a header of ", header_bytes,
              " bytes but has only ", num_bytes - kLengthBytes, " after the length; the file is truncated");
    header_ = std::string_view(reinterpret_cast<const char*>(data) + kLengthBytes, header_bytes);
    E31_CHECK(!header_.empty() && header_.front() == '{', kCheckpoint, source,
              " is not a safetensors file: its header does not start with {");
    tensor_bytes_ = data + kLengthBytes + header_bytes;
    num_tensor_bytes_ = num_bytes - kLengthBytes - header_bytes;
  }

  std::vector<TensorEntry> parse() {
    std::vector<TensorEntry> entries;
    visit_json_members(header_, source_ + " (header)", kHeaderLimits, "",
                       [&](const std::string& name, const Json& value) {
                         if (name == "__metadata__") {
                           check_metadata(value);
                         } else {
                           entries.push_back(parse_entry(name, value));
                         }
                       });
    std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
      return a.data != b.data ? a.data < b.data : a.num_bytes < b.num_bytes;
    });
    check_coverage(entries);
    return entries;
  }

 private:
  template <typename... Parts>
  [[noreturn]] void broken(const std::string& tensor, const Parts&... parts) const {
    fail(ErrorCode::kCheckpoint, source_, ": tensor ", quote(tensor), parts..., "; the file is broken");
  }

  void check_metadata(const Json& metadata) const {
    const bool texts = metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                                           [](const Json& value) { return value.is_string(); });
    E31_CHECK(texts, kCheckpoint, source_, ": \"__metadata__\" must map strings to strings");
  }

  uint64_t unsigned_value(const std::string& tensor, const char* key, const Json& value) const {
    if (!value.is_number_unsigned()) broken(tensor, ": ", key, " holds ", describe(value), ", not a whole number >= 0");
    return value.get<uint64_t>();
  }

  TensorEntry parse_entry(const std::string& name, const Json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets")) {
      broken(name, " must have dtype, shape and data_offsets and nothing else");
    }
    if (name.empty()) broken(name, " has no name");
    TensorEntry entry;
    entry.name = name;
    const Json& dtype = value["dtype"];
    const auto* type = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes), [&](const StoredType& known) {
      return dtype.is_string() && dtype.get_ref<const std::string&>() == known.name;
    });
    if (type == std::end(kStoredTypes)) broken(name, " has the unknown dtype ", describe(dtype));
    entry.dtype_name = type->name;
    entry.supported_dtype = type->dtype.has_value();
    entry.dtype = type->dtype.value_or(DType::kUInt8);
    const uint64_t expected_bytes = parse_shape(name, value["shape"], static_cast<uint64_t>(type->bits), entry.shape);

    const Json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) broken(name, ": data_offsets must be [begin, end]");
    const uint64_t begin = unsigned_value(name, "data_offsets", offsets[0]);
    const uint64_t end = unsigned_value(name, "data_offsets", offsets[1]);
    if (begin > end || end > num_tensor_bytes_) {
      broken(name, " has the byte range [", begin, ", ", end, "] in ", num_tensor_bytes_, " bytes of tensors");
    }
    if (end - begin != expected_bytes) {
      broken(name, " of dtype ", entry.dtype_name, " and shape ", entry.shape_string(), " needs ", expected_bytes,
             " bytes, but its range [", begin, ", ", end, "] has ", end - begin);
    }
    entry.data = tensor_bytes_ + begin;
    entry.num_bytes = static_cast<int64_t>(end - begin);
    return entry;
  }

  // Fills shape; returns the bytes that it needs.
  uint64_t parse_shape(const std::string& name, const Json& value, uint64_t bits, std::vector<int64_t>& shape) const {
    if (!value.is_array() || value.size() > kMaxRank) broken(name, ": shape must be a list of at most ", kMaxRank);
    constexpr uint64_t kMaxBits = std::numeric_limits<int64_t>::max();
    uint64_t total_bits = bits;
    for (const Json& item : value) {
      const uint64_t size = unsigned_value(name, "shape", item);
      if (size > kMaxBits || (size != 0 && total_bits > kMaxBits / size)) broken(name, " has an impossible shape");
      total_bits *= size;
      shape.push_back(static_cast<int64_t>(size));
    }
    if (total_bits % 8 != 0) broken(name, " does not fill whole bytes");
    return total_bits / 8;
  }

  // The format allows neither holes nor overlaps: every byte belongs to exactly one tensor.
  void check_coverage(const std::vector<TensorEntry>& entries) const {
    const std::byte* expected = tensor_bytes_;
    const TensorEntry* previous = nullptr;
    for (const TensorEntry& entry : entries) {
      if (entry.data < expected) broken(entry.name, " overlaps tensor ", quote(previous->name));
      if (entry.data > expected) {
        broken(entry.name, " starts ", entry.data - expected, " bytes after the end of ",
               previous == nullptr ? std::string("the header") : "tensor " + quote(previous->name));
      }
      expected = entry.data + entry.num_bytes;
      previous = &entry;
    }
    const auto rest = tensor_bytes_ + num_tensor_bytes_ - expected;
    E31_CHECK(rest == 0, kCheckpoint, source_, " has ", rest, " bytes that belong to no tensor; the file is broken");
  }

  const std::string& source_;
  std::string_view header_;
  const std::byte* tensor_bytes_ = nullptr;
  uint64_t num_tensor_bytes_ = 0;
};

}  // namespace

std::vector<TensorEntry> parse_safetensors(const std::byte* data, size_t num_bytes, const std::string& source) {
  return HeaderParser(data, num_bytes, source).parse();
}

}  // namespace eagle31rt
