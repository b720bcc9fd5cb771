// Memory of the paged KV cache of all layers of one model. Page accounting is the engine's (engine/page_pool.h).
// On the CPU pages become resident when first written, so an ample pool costs address space only. Elsewhere it is
// zeroed, for the reason given in scratch.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "device/device.h"
#include "ops/kv_append/kv_cache_view.h"
#include "ops/mla_append/latent_cache_view.h"

namespace eagle31rt {

// Keys and values, or the one entry that both are made of in multi-head latent attention (then latent_dim > 0, and
// num_kv_heads and head_dim mean nothing).
struct KvShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBFloat16;
  int32_t latent_dim = 0;
  int32_t rope_dim = 0;

  bool is_latent() const { return latent_dim > 0; }
  int64_t num_arrays() const { return is_latent() ? 1 : 2; }  // of a layer, equal in size
  int64_t array_bytes_per_token() const {
    return (is_latent() ? latent_dim + rope_dim : int64_t{num_kv_heads} * head_dim) * dtype_size(dtype);
  }
  // What one token takes over all layers, in bytes.
  int64_t bytes_per_token() const { return num_layers * num_arrays() * array_bytes_per_token(); }
};

using LayerCache = std::variant<KvCacheView, LatentCacheView>;

class KvStorage {
 public:
  KvStorage() = default;
  KvStorage(const KvShape& shape, int64_t num_pages, int32_t page_size, Device& device = cpu_device())
      : shape_(shape), bytes_per_page_(static_cast<size_t>(shape.array_bytes_per_token() * page_size)) {
    const KeyLayout layout = device.kind() == DeviceKind::kCpu ? KeyLayout::kTokensFastest : KeyLayout::kDimsFastest;
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      void* first = add_array(num_pages, device);
      if (shape.is_latent()) {
        const LatentCacheView view{first, shape.dtype, num_pages, page_size, shape.latent_dim, shape.rope_dim};
        layers_.emplace_back(view);
        // An entry is a row of one array, which is the key and the value.
        entries_.push_back(
            {first, first, shape.dtype, num_pages, page_size, 1, view.entry_dim(), KeyLayout::kDimsFastest});
      } else {
        entries_.push_back({first, add_array(num_pages, device), shape.dtype, num_pages, page_size, shape.num_kv_heads,
                            shape.head_dim, layout});
        layers_.emplace_back(entries_.back());
      }
    }
  }

  const LayerCache& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  const KvShape& shape() const { return shape_; }
  // Every layer as what moves whole entries takes it (ops/compact_kv), latent caches as well.
  const std::vector<KvCacheView>& entries() const { return entries_; }

  // A whole page, of all layers.
  void copy_page(int32_t from, int32_t to, Device& device) {
    for (DeviceBuffer& array : arrays_) {
      auto* bytes = array.as<std::byte>();
      device.copy(bytes + bytes_per_page_ * static_cast<size_t>(to),
                  bytes + bytes_per_page_ * static_cast<size_t>(from), bytes_per_page_);
    }
  }

 private:
  void* add_array(int64_t num_pages, Device& device) {
    const size_t num_bytes = bytes_per_page_ * static_cast<size_t>(num_pages);
    DeviceBuffer& array = arrays_.emplace_back(device, num_bytes);
    if (!device.is_host()) device.fill(array.data(), 0, num_bytes);
    return array.data();
  }

  KvShape shape_;
  size_t bytes_per_page_ = 0;
  std::vector<DeviceBuffer> arrays_;
  std::vector<LayerCache> layers_;
  std::vector<KvCacheView> entries_;
};

}  // namespace eagle31rt
