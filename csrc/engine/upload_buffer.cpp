#include "engine/upload_buffer.h"

#include <algorithm>
#include <cstring>

namespace eagle31rt {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinimumSize = 4096;

}  // namespace

size_t UploadBuffer::append(const void* values, size_t num_bytes) {
  const size_t offset = (size_ + kAlignment - 1) / kAlignment * kAlignment;
  if (offset + num_bytes > staging_.size()) {
    HostBuffer larger(device_, std::max({kMinimumSize, 2 * staging_.size(), offset + num_bytes}));
    if (size_ > 0) std::memcpy(larger.as<std::byte>(), staging_.as<std::byte>(), size_);
    staging_ = std::move(larger);
  }
  if (num_bytes > 0) std::memcpy(staging_.as<std::byte>() + offset, values, num_bytes);
  size_ = offset + num_bytes;
  return offset;
}

UploadedBatch UploadBuffer::add(const ForwardBatch& batch) {
  return {.token_ids = add(batch.token_ids),
          .positions = add(batch.positions),
          .row_begin = add(batch.row_begin),
          .kv_begin = add(batch.kv_begin),
          .kv_length = add(batch.kv_length),
          .page_table = add(batch.page_table),
          .slots = add(batch.slots),
          .page_table_stride = batch.page_table_stride,
          .num_rows = batch.num_rows(),
          .num_requests = batch.num_requests()};
}

BatchView UploadBuffer::at(const UploadedBatch& batch) const {
  return {.token_ids = at(batch.token_ids),
          .positions = at(batch.positions),
          .slots = at(batch.slots),
          .row_begin = at(batch.row_begin),
          .kv_begin = at(batch.kv_begin),
          .kv_length = at(batch.kv_length),
          .page_table = at(batch.page_table),
          .page_table_stride = batch.page_table_stride,
          .num_rows = batch.num_rows,
          .num_requests = batch.num_requests};
}

bool UploadBuffer::send() {
  const bool moves = memory_.size() < staging_.size();
  if (moves) {
    memory_ = {};
    memory_ = DeviceBuffer(device_, staging_.size());
  }
  device_.copy_to_device(memory_.data(), staging_.as<std::byte>(), size_);
  return moves;
}

}  // namespace eagle31rt
