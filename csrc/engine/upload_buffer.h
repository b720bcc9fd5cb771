// Small arrays of a step on their way to the device, in one copy.
//
//   buffer.clear();
//   const auto tokens = buffer.add(token_ids);
//   buffer.send();
//   use(buffer.at(tokens));
//
// The same arrays in the same order have the same addresses in every step, until send() says that they moved. clear()
// only after the device has been waited for.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/forward_batch.h"

namespace eagle31rt {

template <typename T>
struct Uploaded {
  size_t offset = 0;
};

struct UploadedBatch {
  Uploaded<int32_t> token_ids, positions, row_begin, kv_begin, kv_length, page_table;
  Uploaded<int64_t> slots;
  int32_t page_table_stride = 0;
  int64_t num_rows = 0, num_requests = 0;
};

class UploadBuffer {
 public:
  explicit UploadBuffer(Device& device) : device_(device) {}

  void clear() { size_ = 0; }
  template <typename T>
  Uploaded<T> add(const std::vector<T>& values) {
    return {append(values.data(), values.size() * sizeof(T))};
  }
  UploadedBatch add(const ForwardBatch& batch);

  // True if the arrays lie elsewhere than before.
  bool send();

  template <typename T>
  const T* at(Uploaded<T> array) const {
    return reinterpret_cast<const T*>(memory_.as<std::byte>() + array.offset);
  }
  BatchView at(const UploadedBatch& batch) const;

 private:
  size_t append(const void* values, size_t num_bytes);

  Device& device_;
  HostBuffer staging_;
  DeviceBuffer memory_;
  size_t size_ = 0;
};

}  // namespace eagle31rt
