// Memory of the paged KV cache of all layers of one model. Page accounting is the engine's (engine/page_pool.h).
// On the CPU pages become resident when first written, so an ample pool costs address space only. Elsewhere it is
// zeroed, for the reason given in scratch.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/kv_append/kv_cache_view.h"

namespace eagle31rt {

struct KvShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBFloat16;

  // Keys and values of one token over all layers, in bytes.
  int64_t bytes_per_token() const { return int64_t{2} * num_layers * num_kv_heads * head_dim * dtype_size(dtype); }
};

class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const KvShape& shape, int64_t num_pages, int32_t page_size, Device& device = cpu_device()) : shape_(shape) {
    const KeyLayout layout = device.kind() == DeviceKind::kCpu ? KeyLayout::kTokensFastest : KeyLayout::kDimsFastest;
    const int64_t elements = num_pages * page_size * shape.num_kv_heads * shape.head_dim;
    const size_t num_bytes = static_cast<size_t>(elements * dtype_size(shape.dtype));
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      keys_.emplace_back(device, num_bytes);
      values_.emplace_back(device, num_bytes);
      views_.push_back({keys_.back().data(), values_.back().data(), shape.dtype, num_pages, page_size,
                        shape.num_kv_heads, shape.head_dim, layout});
      if (device.is_host()) continue;
      device.fill(keys_.back().data(), 0, num_bytes);
      device.fill(values_.back().data(), 0, num_bytes);
    }
  }

  const KvCacheView& layer(int32_t index) const { return views_[static_cast<size_t>(index)]; }
  const KvShape& shape() const { return shape_; }

  // Keys and values of a whole page, of all layers.
  void copy_page(int32_t from, int32_t to, Device& device) {
    for (const KvCacheView& view : views_) {
      const int64_t elements = int64_t{view.page_size} * view.num_kv_heads * view.head_dim;
      const auto num_bytes = static_cast<size_t>(elements * dtype_size(view.dtype));
      for (void* array : {view.key, view.value}) {
        auto* bytes = static_cast<std::byte*>(array);
        device.copy(bytes + num_bytes * static_cast<size_t>(to), bytes + num_bytes * static_cast<size_t>(from),
                    num_bytes);
      }
    }
  }

 private:
  KvShape shape_;
  std::vector<DeviceBuffer> keys_, values_;
  std::vector<KvCacheView> views_;
};

}  // namespace eagle31rt
