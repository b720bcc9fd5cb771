// A file mapped read-only. A file that another process truncates while it is mapped still raises SIGBUS on access; its
// size is checked when it is opened, which is all that a reader can do.
#pragma once

#include <cstddef>
#include <string>

namespace eagle31rt {

class MappedFile {
 public:
  // Throws Error(kCheckpoint) if the path is missing, unreadable or not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const std::byte* pointer) const { return pointer >= data_ && pointer < data_ + size_; }
  // Drops the pages of a range from this process; reading it again reads the file again.
  void release(const std::byte* begin, size_t num_bytes) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace eagle31rt
