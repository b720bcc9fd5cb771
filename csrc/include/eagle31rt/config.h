// What an engine is built from. Every field is honoured or refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eagle31rt {

struct EngineConfig {
  std::string model;                     // Hugging Face directory of the target
  std::string draft;                     // directory of an EAGLE-3 / EAGLE-3.1 draft; empty = plain decoding
  std::string dtype = "auto";            // weights: auto (the file's) | float32 | bfloat16 | float16
  std::string kv_cache_dtype = "auto";   // auto (= dtype) | float32 | bfloat16 | float16
  int32_t page_size = 16;                // tokens a KV page
  int32_t max_model_len = 0;             // tokens a sequence, prompt and output; 0 = what the model allows
  int32_t max_num_seqs = 64;             // requests that run at once
  int32_t max_num_batched_tokens = 512;  // prompt tokens of a step, besides decode and draft rows
  // 0 = enough for max_num_seqs full sequences, at most a quarter of free memory; on a GPU at most what
  // gpu_memory_utilization leaves.
  int64_t kv_cache_memory_bytes = 0;
  bool enable_prefix_caching = true;  // requests share the KV pages of equal beginnings
  int32_t num_threads = 0;            // 0 = physical cores
  std::string device = "cpu";         // cpu | cuda | cuda:N (number as CUDA_VISIBLE_DEVICES leaves it)
  // Share of the GPU's whole memory that may be in use once the KV cache is there, by this engine and by others.
  double gpu_memory_utilization = 0.9;
  bool enforce_eager = false;  // launch every kernel by itself instead of recording steps as graphs
  // Where lengths, page tables and newest tokens of running requests are kept: auto (host on the CPU, else device) |
  // host (CPU only) | device. The ids are the same; on the CPU `device` is for tests.
  std::string decode_state = "auto";
  int32_t num_speculative_tokens = 0;  // K, drafts of a step, upper bound of every request: 0..16, with trees 0..64
  // Draft trees instead of chains (CPU). Of dynamic ones: children of a node, 0 or 1 = chains; and levels, 0 = up to 8.
  int32_t tree_top_k = 0;
  int32_t tree_depth = 0;
  // A static tree: each path from the root as ranks among the draft's most probable tokens; its beginnings are there.
  std::vector<std::vector<int32_t>> speculative_token_tree;
  // fixed: every step drafts what the request allows | auto: what yields most tokens per second, none included. With
  // equality the ids are the same.
  std::string speculation_policy = "fixed";
  std::string rejection_sample_method = "equality";  // equality | standard | block | synthetic
  std::string draft_sample_method = "greedy";        // greedy | probabilistic (standard and block only)
  std::vector<double> synthetic_acceptance_rates;    // synthetic: P(first i + 1 drafts accepted), K of them
  // For features of the target that the draft did not observe because drafting was off for a while; -1: an eighth of
  // the target's KV cache. What does not fit is computed again or missed, which costs acceptance, never an id.
  int64_t kept_features_memory_bytes = -1;
  // Draft overrides; see the draft's errors for when they are needed.
  std::vector<int32_t> capture_layers;  // canonical: k = residual stream after k layers
  std::string layer_id_convention;      // "" | residual_index | layer_output
  std::string feedback = "auto";        // auto | pre | post
  bool profile = false;                 // keep the time breakdown of Engine::take_profile()
};

}  // namespace eagle31rt
