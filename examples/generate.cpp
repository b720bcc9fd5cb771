// The runtime inside a C++ program: no Python, no torch.
//
//   generate MODEL_DIR DRAFT_DIR TOKEN_ID...
//
// Prints the ids of a plain and of a speculative run of 32 tokens and ends with 0 only if they are the same.
// A tokenizer is the embedder's own; `python -c "from eagle31rt.tokenizer import Tokenizer; ..."` makes ids to try.
#include <cstdlib>
#include <iostream>
#include <vector>

#include "eagle31rt/engine.h"
#include "eagle31rt/status.h"

namespace {

std::vector<int32_t> generate(eagle31rt::Engine& engine, const std::vector<int32_t>& prompt, int32_t num_drafts) {
  eagle31rt::SamplingParams params;
  params.temperature = 0.0f;
  params.max_tokens = 32;
  params.num_speculative_tokens = num_drafts;
  engine.add_request(1, prompt, params);
  std::vector<int32_t> ids;
  while (engine.has_unfinished_requests()) {
    for (const eagle31rt::StepOutput& output : engine.step()) {
      ids.insert(ids.end(), output.new_token_ids.begin(), output.new_token_ids.end());
      if (output.finish_reason != eagle31rt::FinishReason::kNone && output.metrics.num_drafts > 0) {
        std::cout << "accepted " << output.metrics.num_accepted_tokens << " of " << output.metrics.num_draft_tokens
                  << " drafts\n";
      }
    }
  }
  return ids;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: generate MODEL_DIR DRAFT_DIR TOKEN_ID...\n";
    return 2;
  }
  try {
    eagle31rt::EngineConfig config;
    config.model = argv[1];
    config.draft = argv[2];
    config.num_speculative_tokens = 3;
    config.max_num_seqs = 1;
    eagle31rt::Engine engine(config);
    std::vector<int32_t> prompt;
    for (int i = 3; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));
    const std::vector<int32_t> plain = generate(engine, prompt, 0);
    const std::vector<int32_t> speculative = generate(engine, prompt, 3);
    for (int32_t id : plain) std::cout << id << ' ';
    std::cout << (plain == speculative ? "\nidentical\n" : "\nDIFFERENT\n");
    return plain == speculative ? 0 : 1;
  } catch (const eagle31rt::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
