// How many drafts would stand from every position of a known text. With deterministic drafts and the equality rule this
// settles the acceptance of every draft length at once, in one pass over the text instead of one run for each length.
#include <pybind11/stl.h>

#include <algorithm>

#include "base/check.h"
#include "bindings/testing.h"
#include "bindings/testing_target.h"
#include "model/eagle_draft.h"
#include "spec/chain_drafter.h"

namespace py = pybind11;

namespace eagle31rt {

namespace {

class DraftProbe {
 public:
  DraftProbe(const std::string& model, const std::string& draft_directory, int32_t max_tokens, int num_threads)
      : pool_(num_threads), context_{pool_, cpu_ops()} {
    const DecoderConfig target_config = read_decoder_config(model);
    DraftConfig config =
        parse_draft_config(read_text_file(draft_directory + "/config.json"), target_config, {}, draft_directory);
    target_ = std::make_unique<LoadedTarget>(model, "auto", "auto", config.capture_layers, max_tokens, kPageSize);
    DraftWeights weights =
        load_draft_weights(Checkpoint::open(draft_directory), config, target_config, target_config.dtype);
    draft_ = std::make_unique<EagleDraft>(std::move(config), std::move(weights), *target_->decoder);
    kv_ = std::make_unique<KvStorage>(draft_->kv_shape(target_config.dtype),
                                      static_cast<int64_t>(target_->pages.size()), kPageSize);
  }

  // For every committed length from prompt_length + 1 to tokens.size(): how many of num_steps drafts proposed there
  // equal the tokens that follow. tokens.size() + num_steps must not exceed max_tokens.
  std::vector<int32_t> agreement(const std::vector<int32_t>& tokens, int32_t prompt_length, int32_t num_steps) {
    const auto length = static_cast<int32_t>(tokens.size());
    E31_CHECK(prompt_length >= 1 && prompt_length < length, kInvalidArgument, "prompt_length is ", prompt_length,
              "; give 1 to ", length - 1);
    ChainDrafter drafter(*draft_, *kv_, {.num_slots = 1, .page_size = kPageSize, .draw = false});
    drafter.begin(0);
    const int64_t captured_size = draft_->captured_size();
    std::vector<float> captured(static_cast<size_t>(length * captured_size));
    for (int32_t first = 0; first < length; first += kChunk) {
      target_->feed(tokens, first, std::min(kChunk, length - first), kPageSize, nullptr,
                    captured.data() + first * captured_size, context_);
    }
    std::vector<int32_t> result;
    for (int32_t committed = prompt_length + 1; committed <= length; ++committed) {
      const int32_t first = drafter.num_observed(0);
      const Observation observation{.slot = 0,
                                    .pages = target_->pages,
                                    .first_position = first,
                                    .captured = captured.data() + first * captured_size,
                                    .next_tokens = std::span(tokens).subspan(
                                        static_cast<size_t>(first + 1), static_cast<size_t>(committed - 1 - first))};
      drafter.observe({&observation, 1}, context_);
      result.push_back(propose_and_compare(drafter, tokens, committed, num_steps));
    }
    return result;
  }

 private:
  static constexpr int32_t kPageSize = 16;
  static constexpr int32_t kChunk = 512;

  int32_t propose_and_compare(ChainDrafter& drafter, const std::vector<int32_t>& tokens, int32_t committed,
                              int32_t num_steps) {
    const DraftRequest request{.slot = 0,
                               .pages = target_->pages,
                               .num_tokens = num_steps,
                               .max_depth = num_steps,
                               .temperature = 0.0f,
                               .seed = 0,
                               .first_position = committed};
    drafter.propose({&request, 1}, proposals_, context_);
    drafter.accept(0, 0);
    int32_t equal = 0;
    while (equal < num_steps && committed + equal < static_cast<int32_t>(tokens.size()) &&
           proposals_.token_ids[static_cast<size_t>(equal) + 1] == tokens[static_cast<size_t>(committed + equal)]) {
      ++equal;
    }
    return equal;
  }

  ThreadPool pool_;
  ExecutionContext context_;
  std::unique_ptr<LoadedTarget> target_;
  std::unique_ptr<EagleDraft> draft_;
  std::unique_ptr<KvStorage> kv_;
  Proposals proposals_;
};

}  // namespace

void bind_testing_agreement(py::module_& module) {
  py::class_<DraftProbe>(module, "DraftProbe")
      .def(py::init<const std::string&, const std::string&, int32_t, int>(), py::arg("model_dir"), py::arg("draft_dir"),
           py::arg("max_tokens"), py::arg("num_threads") = 0)
      .def("agreement", &DraftProbe::agreement, py::arg("token_ids"), py::arg("prompt_length"), py::arg("num_steps"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace eagle31rt
