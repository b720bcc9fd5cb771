// A target driven by hand: loaded, with room for one sequence.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/decoder.h"
#include "ops/ops.h"

namespace eagle31rt {

inline DType dtype_or(const std::string& name, DType automatic) {
  return name == "auto" ? automatic : parse_floating_point_dtype(name);
}

// A target with room for one sequence, and the table of its pages (in descending order, so that order is tested too).
struct LoadedTarget {
  DecoderConfig config;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<KvStorage> kv;
  std::vector<int32_t> pages;

  LoadedTarget(const std::string& directory, const std::string& dtype, const std::string& kv_dtype,
               const std::vector<int32_t>& capture_layers, int64_t num_tokens, int32_t page_size) {
    config = read_decoder_config(directory);
    const DType weight_dtype = dtype_or(dtype, config.dtype);
    decoder = std::make_unique<Decoder>(config, load_decoder_weights(Checkpoint::open(directory), config, weight_dtype),
                                        capture_layers);
    pages.resize(static_cast<size_t>((num_tokens + page_size - 1) / page_size));
    std::iota(pages.rbegin(), pages.rend(), 0);
    kv = std::make_unique<KvStorage>(decoder->kv_shape(dtype_or(kv_dtype, weight_dtype)),
                                     static_cast<int64_t>(pages.size()), page_size);
  }

  // Feeds tokens[first, first + count); logits of every row and captured states go to the given memory.
  void feed(const std::vector<int32_t>& tokens, int32_t first, int32_t count, int32_t page_size, float* logits,
            float* captured, ExecutionContext& context) {
    ForwardBatch batch;
    batch.clear(static_cast<int32_t>(pages.size()));
    batch.add_request(std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), pages,
                      page_size, first, 0, 0);
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    if (logits == nullptr) rows.clear();
    decoder->forward(batch.view(), {rows.data(), static_cast<int64_t>(rows.size())},
                     {.logits = logits, .captured = captured}, *kv, context);
  }
};

}  // namespace eagle31rt
