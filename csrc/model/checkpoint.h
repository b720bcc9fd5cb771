// A Hugging Face checkpoint directory: config.json and one or many safetensors files, read by memory map.
//
// Files are untrusted. Everything that the header of a safetensors file says is checked before use: header length
// against the file and the format's limit of 100 MB, JSON shape, known dtype, shape product against byte range (without
// overflow), ranges inside the file, no overlap and no hole, no duplicate key, index against files (no path that leaves
// the directory). Each fault is an Error(kCheckpoint) with file, tensor and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "eagle31rt/dtype.h"

namespace eagle31rt {

struct TensorEntry {
  std::string name;
  std::string dtype_name;         // as the file spells it: "BF16", "F8_E4M3", ...
  DType dtype = DType::kFloat32;  // meaningful if supported_dtype
  bool supported_dtype = true;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // inside the map, unaligned
  int64_t num_bytes = 0;

  int64_t num_elements() const;
  std::string shape_string() const;  // "[576, 1536]"
};

class MappedFile;

class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) = default;  // not a copy: names and entries are pointed to
  Checkpoint& operator=(Checkpoint&&) = default;
  // Opens model.safetensors, or model.safetensors.index.json and its shards.
  static Checkpoint open(const std::string& directory);
  // One safetensors image in memory, which the caller keeps alive (tests, fuzzing).
  static Checkpoint from_memory(const std::byte* data, size_t num_bytes, const std::string& source);

  const std::string& directory() const { return directory_; }
  const TensorEntry* find(const std::string& name) const;  // null if absent
  // File by file, in the order of their bytes.
  const std::deque<TensorEntry>& tensors() const { return tensors_; }
  // Tells the kernel that this tensor's file pages will not be read again, so that loading holds one copy.
  void release_pages(const TensorEntry& tensor) const;

 private:
  Checkpoint() = default;
  void add_tensors(std::vector<TensorEntry> entries, const std::string& source);

  std::string directory_;
  std::vector<std::shared_ptr<MappedFile>> files_;
  std::deque<TensorEntry> tensors_;  // a deque, so that entries stay in place
  std::unordered_map<std::string_view, const TensorEntry*> by_name_;
};

// Whole text of a small file (config.json); Error(kCheckpoint) if missing, unreadable or over 64 MB.
std::string read_text_file(const std::string& path);
bool file_exists(const std::string& path);

}  // namespace eagle31rt
