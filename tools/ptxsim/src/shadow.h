// What the race checker knows about each byte of a memory: who wrote and who read it last.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace ptxsim {

struct ShadowRecord {
  static constexpr uint32_t kManyBlocks = ~uint32_t{0};
  static constexpr uint16_t kManyThreads = 0xffff;

  bool written = false, atomic_write = false, in_flight = false, read = false, atomic_reads = false;
  uint16_t writer = 0, reader = 0;  // threads of their blocks
  uint32_t write_block = 0, write_clock = 0;
  int32_t write_pc = 0;
  uint32_t read_block = 0, read_clock = 0;
  int32_t read_pc = 0;
  uint32_t reader_warps = 0;  // bit per warp that has read since the last write
};

// Records of a page are per 4 bytes until something smaller is accessed in it, then per byte.
class ShadowMemory {
 public:
  static constexpr uint64_t kPageBytes = 1024;
  static constexpr uint64_t kWordBytes = 4;

  void clear() {
    pages_.clear();
    last_page_ = nullptr;
  }

  // Calls visit(record, offset) for the records of the bytes [offset, offset + bytes); bytes is a power of two, offset
  // a multiple of it.
  template <class Visit>
  void for_each(uint64_t offset, uint64_t bytes, Visit visit) {
    Page& page = find(offset / kPageBytes);
    if (bytes < kWordBytes && !page.by_byte) split(page);
    const uint64_t step = page.by_byte ? 1 : kWordBytes;
    for (uint64_t at = offset; at < offset + bytes; at += step) visit(page.records[at % kPageBytes / step], at);
  }

 private:
  struct Page {
    bool by_byte = false;
    std::vector<ShadowRecord> records = std::vector<ShadowRecord>(kPageBytes / kWordBytes);
  };

  Page& find(uint64_t number) {
    if (last_page_ != nullptr && number == last_number_) return *last_page_;
    last_number_ = number;
    last_page_ = &pages_[number];
    return *last_page_;
  }

  static void split(Page& page) {
    std::vector<ShadowRecord> bytes(kPageBytes);
    for (uint64_t i = 0; i < kPageBytes; ++i) bytes[i] = page.records[i / kWordBytes];
    page.records = std::move(bytes);
    page.by_byte = true;
  }

  std::unordered_map<uint64_t, Page> pages_;
  uint64_t last_number_ = 0;
  Page* last_page_ = nullptr;
};

}  // namespace ptxsim
