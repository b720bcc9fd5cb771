#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "model/checkpoint.h"

namespace eagle31rt {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

class FileDescriptor {
 public:
  // O_NONBLOCK: opening a FIFO must not hang.
  explicit FileDescriptor(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    E31_CHECK(descriptor_ >= 0, kCheckpoint, "cannot open ", path, ": ", std::strerror(errno));
    struct stat status{};
    const bool regular = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
    if (!regular) close(descriptor_);
    E31_CHECK(regular, kCheckpoint, path, " is not a regular file");
    size_ = static_cast<size_t>(status.st_size);
  }
  ~FileDescriptor() { close(descriptor_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return descriptor_; }
  size_t size() const { return size_; }

 private:
  int descriptor_;
  size_t size_ = 0;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const FileDescriptor file(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  E31_CHECK(memory != MAP_FAILED, kResource, "cannot map ", path, " (", size_, " bytes): ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(const std::byte* begin, size_t num_bytes) const {
  // Rounded outwards: what a neighbour still needs of the border pages is read again from the page cache.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = static_cast<size_t>(begin - data_) / page * page;
  const size_t last = std::min(static_cast<size_t>(begin - data_) + num_bytes, size_);
  if (last > first) madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path) {
  const FileDescriptor file(path);
  E31_CHECK(file.size() <= kMaxTextBytes, kCheckpoint, path, " has ", file.size(), " bytes; the limit is ",
            kMaxTextBytes);
  std::string text(file.size(), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    E31_CHECK(got > 0, kCheckpoint, "cannot read ", path, ": ", got < 0 ? std::strerror(errno) : "it became shorter");
    filled += static_cast<size_t>(got);
  }
  return text;
}

bool file_exists(const std::string& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace eagle31rt
