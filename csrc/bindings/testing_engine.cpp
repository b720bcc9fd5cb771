// Target and draft driven by hand, for comparison with independent implementations.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <numeric>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_target.h"
#include "model/checkpoint.h"
#include "model/decoder.h"
#include "model/eagle_draft.h"
#include "ops/ops.h"
#include "spec/chain_drafter.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

using Floats = py::array_t<float, py::array::c_style>;

void check_chunks(const std::vector<int32_t>& chunks, size_t num_tokens) {
  E31_CHECK(std::accumulate(chunks.begin(), chunks.end(), size_t{0}) == num_tokens, kInvalidArgument,
            "chunks must add up to ", num_tokens, " tokens");
}

py::tuple run_decoder(const std::string& model, const std::vector<int32_t>& tokens, const std::vector<int32_t>& chunks,
                      const std::string& dtype, const std::string& kv_dtype, const std::vector<int32_t>& capture_layers,
                      int32_t page_size, int num_threads) {
  check_chunks(chunks, tokens.size());
  ThreadPool pool(num_threads);
  ExecutionContext context{pool, cpu_ops()};
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  LoadedTarget target(model, dtype, kv_dtype, capture_layers, num_tokens, page_size);
  const int64_t vocab = target.config.vocab_size;
  const int64_t captured_size = target.decoder->captured_size();
  Floats logits({num_tokens, vocab}), captured({num_tokens, captured_size});
  int32_t first = 0;
  for (int32_t count : chunks) {
    target.feed(tokens, first, count, page_size, logits.mutable_data() + first * vocab,
                capture_layers.empty() ? nullptr : captured.mutable_data() + first * captured_size, context);
    first += count;
  }
  return py::make_tuple(logits, captured);
}

// Prefills all tokens but the last through target and draft, takes the last as the newest committed token, and drafts.
// rounds: sizes in which the draft observes; so a prefix observed again after drafting can be compared with one pass.
py::tuple run_draft(const std::string& model, const std::string& draft_directory, const std::vector<int32_t>& tokens,
                    int32_t num_steps, const std::vector<int32_t>& chunks, const std::string& dtype,
                    const std::string& kv_dtype, const std::string& layer_id_convention, const std::string& feedback,
                    bool draft_between_chunks) {
  constexpr int32_t kPageSize = 16;
  check_chunks(chunks, tokens.size() - 1);
  ThreadPool pool(1);
  ExecutionContext context{pool, cpu_ops()};
  const DecoderConfig target_config = read_decoder_config(model);
  const DraftConfig draft_config = parse_draft_config(read_text_file(draft_directory + "/config.json"), target_config,
                                                      {{}, layer_id_convention, feedback}, draft_directory);
  LoadedTarget target(model, dtype, kv_dtype, draft_config.capture_layers,
                      static_cast<int64_t>(tokens.size()) + num_steps + 1, kPageSize);
  const DType weight_dtype = dtype_or(dtype, target_config.dtype);
  EagleDraft draft(draft_config,
                   load_draft_weights(Checkpoint::open(draft_directory), draft_config, target_config, weight_dtype),
                   *target.decoder);
  KvStorage draft_kv(draft.kv_shape(dtype_or(kv_dtype, weight_dtype)), static_cast<int64_t>(target.pages.size()),
                     kPageSize);
  // Drawing at temperature 0 is argmax and keeps the logits.
  ChainDrafter drafter(draft, draft_kv, {.num_slots = 1, .page_size = kPageSize, .draw = true});
  drafter.begin(0);

  const int64_t captured_size = target.decoder->captured_size();
  std::vector<float> captured(tokens.size() * static_cast<size_t>(captured_size));
  Proposals proposals;
  const DraftRequest request{.slot = 0,
                             .pages = target.pages,
                             .num_tokens = num_steps,
                             .max_depth = num_steps,
                             .temperature = 0.0f,
                             .seed = 0,
                             .first_position = static_cast<int64_t>(tokens.size())};
  int32_t first = 0;
  for (int32_t count : chunks) {
    float* rows = captured.data() + first * captured_size;
    target.feed(tokens, first, count, kPageSize, nullptr, rows, context);
    const Observation observation{
        .slot = 0,
        .pages = target.pages,
        .first_position = first,
        .captured = rows,
        .next_tokens = std::span(tokens).subspan(static_cast<size_t>(first + 1), static_cast<size_t>(count))};
    drafter.observe({&observation, 1}, context);
    first += count;
    if (draft_between_chunks) {  // leaves provisional entries that the next observation must overwrite
      drafter.propose({&request, 1}, proposals, context);
      drafter.accept(0, 0);
    }
  }
  drafter.propose({&request, 1}, proposals, context);
  Floats logits({static_cast<int64_t>(num_steps), proposals.draft_vocab_size});
  std::copy_n(proposals.logits, logits.size(), logits.mutable_data());
  const auto drafts = proposals.token_ids.begin() + 1;  // behind the root
  return py::make_tuple(logits, std::vector<int32_t>(drafts, drafts + num_steps));
}

}  // namespace

void bind_testing_engine(py::module_& module) {
  module.def("run_decoder", &run_decoder, py::arg("model_dir"), py::arg("token_ids"), py::arg("chunks"),
             py::arg("dtype") = "auto", py::arg("kv_cache_dtype") = "auto",
             py::arg("capture_layers") = std::vector<int32_t>{}, py::arg("page_size") = 16, py::arg("num_threads") = 1);
  module.def("run_draft", &run_draft, py::arg("model_dir"), py::arg("draft_dir"), py::arg("token_ids"),
             py::arg("num_steps"), py::arg("chunks"), py::arg("dtype") = "auto", py::arg("kv_cache_dtype") = "auto",
             py::arg("layer_id_convention") = "", py::arg("feedback") = "auto",
             py::arg("draft_between_chunks") = false);
}

}  // namespace eagle31rt
