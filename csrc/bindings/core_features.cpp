// Captured states of a target over given token ids: what a draft is trained on. They are the bits that the engine feeds
// its draft, in any batch and any chunks, because every operator is row-exact.
#include "bindings/core_features.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/check.h"
#include "engine/engine_impl.h"
#include "model/checkpoint.h"
#include "model/decoder.h"
#include "ops/ops.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

EngineConfig engine_config(const std::string& model, const std::string& device) {
  EngineConfig config;
  config.model = model;
  config.device = device;
  return config;
}

class FeatureExtractor {
 public:
  // capture_layers: ascending k of the residual streams R_k (0 = embedding, num_layers = input of the last norm).
  // max_tokens: of the longest sequence. Throws what loading a target throws.
  FeatureExtractor(const std::string& model, const std::vector<int32_t>& capture_layers, int32_t max_tokens,
                   int num_threads, const std::string& device)
      : backend_(open_backend(engine_config(model, device))),
        device_(*backend_.device),
        pool_(num_threads),
        context_{pool_, *backend_.ops, nullptr, device_.is_host() ? nullptr : &device_},
        upload_(device_),
        captured_(device_),
        max_tokens_(max_tokens) {
    const DecoderConfig config = read_decoder_config(model);
    E31_CHECK(!capture_layers.empty() && std::ranges::is_sorted(capture_layers) && capture_layers.front() >= 0 &&
                  capture_layers.back() <= config.num_layers,
              kInvalidArgument, "capture_layers must ascend within 0 to ", config.num_layers);
    E31_CHECK(max_tokens >= 1 && max_tokens <= config.max_position_embeddings, kInvalidArgument, "max_tokens is ",
              max_tokens, "; give 1 to ", config.max_position_embeddings);
    decoder_ =
        std::make_unique<Decoder>(config, load_decoder_weights(Checkpoint::open(model), config, config.dtype, device_),
                                  capture_layers, device_, max_tokens);
    pages_.resize(static_cast<size_t>((max_tokens + kPageSize - 1) / kPageSize));
    std::iota(pages_.begin(), pages_.end(), 0);
    kv_ = KvStorage(decoder_->kv_shape(config.dtype), static_cast<int64_t>(pages_.size()), kPageSize, device_);
  }

  // token_ids [sum(lengths)], one sequence after the other -> captured [sum(lengths), capture_layers * hidden_size].
  py::array_t<float> extract(const std::vector<int32_t>& token_ids, const std::vector<int32_t>& lengths) {
    check(token_ids, lengths);
    const int64_t size = decoder_->captured_size();
    py::array_t<float> captured({static_cast<py::ssize_t>(token_ids.size()), static_cast<py::ssize_t>(size)});
    float* rows = captured.mutable_data();
    const py::gil_scoped_release release;
    std::span<const int32_t> rest(token_ids);
    for (const int32_t length : lengths) {
      feed(rest.first(static_cast<size_t>(length)), rows);
      rest = rest.subspan(static_cast<size_t>(length));
      rows += length * size;
    }
    return captured;
  }

 private:
  static constexpr int32_t kPageSize = 16;
  static constexpr size_t kChunk = 512;  // rows a pass: bounds the activations

  void check(const std::vector<int32_t>& token_ids, const std::vector<int32_t>& lengths) const {
    const int32_t vocab_size = decoder_->config().vocab_size;
    int64_t total = 0;
    for (const int32_t length : lengths) {
      E31_CHECK(length >= 1 && length <= max_tokens_, kInvalidArgument, "a sequence has ", length,
                " tokens; give 1 to max_tokens (", max_tokens_, ")");
      total += length;
    }
    E31_CHECK(total == static_cast<int64_t>(token_ids.size()), kInvalidArgument, "lengths add up to ", total, " for ",
              token_ids.size(), " token ids");
    for (const int32_t id : token_ids) {
      E31_CHECK(id >= 0 && id < vocab_size, kInvalidArgument, "token id ", id, " is outside the vocabulary (0 to ",
                vocab_size - 1, ")");
    }
  }

  void feed(std::span<const int32_t> tokens, float* captured) {
    ForwardBatch batch;
    for (size_t first = 0; first < tokens.size(); first += kChunk) {
      const size_t count = std::min(kChunk, tokens.size() - first);
      const int64_t num_values = static_cast<int64_t>(count) * decoder_->captured_size();
      batch.clear(static_cast<int32_t>(pages_.size()));
      batch.add_request(tokens.subspan(first, count), pages_, kPageSize, static_cast<int32_t>(first), 0, 0);
      upload_.clear();
      const UploadedBatch uploaded = upload_.add(batch);
      upload_.send();
      float* on_device = captured_.get(num_values);
      decoder_->forward(upload_.at(uploaded), {}, {.logits = nullptr, .captured = on_device}, kv_, context_);
      device_.copy_to_host(captured, on_device, static_cast<size_t>(num_values) * sizeof(float));
      device_.synchronize();
      captured += num_values;
    }
  }

  Backend backend_;
  Device& device_;
  ThreadPool pool_;
  ExecutionContext context_;
  UploadBuffer upload_;
  Scratch captured_;
  int32_t max_tokens_;
  std::unique_ptr<Decoder> decoder_;
  KvStorage kv_;
  std::vector<int32_t> pages_;
};

}  // namespace

void bind_features(py::module_& module) {
  py::class_<FeatureExtractor>(module, "FeatureExtractor")
      .def(py::init<const std::string&, const std::vector<int32_t>&, int32_t, int, const std::string&>(),
           py::arg("model"), py::arg("capture_layers"), py::arg("max_tokens"), py::arg("num_threads") = 0,
           py::arg("device") = "cpu", py::call_guard<py::gil_scoped_release>())
      .def("extract", &FeatureExtractor::extract, py::arg("token_ids"), py::arg("lengths"));
}

}  // namespace eagle31rt
