// Exports: ptxsim_control.h.
#include <cstdio>

#include "ptxsim_control.h"
#include "runtime.h"

using cudart::Runtime;
using cudart::runtime;

namespace {

// Keeps a text for the calling thread until its next call.
const char* keep(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

std::string to_json(const ptxsim::Counters& counters) {
  const std::pair<const char*, uint64_t> values[] = {
      {"launches", counters.launches},
      {"block_threads", counters.block_threads},
      {"dynamic_shared_bytes", counters.dynamic_shared_bytes},
      {"warp_instructions", counters.warp_instructions},
      {"thread_instructions", counters.thread_instructions},
      {"global_load_bytes", counters.global_load_bytes},
      {"global_store_bytes", counters.global_store_bytes},
      {"global_load_sectors", counters.global_load_sectors},
      {"global_store_sectors", counters.global_store_sectors},
      {"unique_load_sectors", counters.unique_load_sectors},
      {"unique_store_sectors", counters.unique_store_sectors},
      {"shared_accesses", counters.shared_accesses},
      {"shared_wavefronts", counters.shared_wavefronts},
      {"bank_conflicts", counters.bank_conflicts},
  };
  std::string text = "{";
  for (const auto& [name, value] : values) text += quoted(name) + ": " + std::to_string(value) + ", ";
  text += "\"matrix_instructions\": {";
  const char* separator = "";
  for (const auto& [name, count] : counters.matrix_instructions) {
    text += separator + quoted(name) + ": " + std::to_string(count);
    separator = ", ";
  }
  return text + "}}";
}

}  // namespace

std::string cudart::CounterTable::json(const std::string& name_contains) const {
  std::string text = "{";
  const char* separator = "\n";
  for (const auto& [name, counters] : counters_) {
    if (name.find(name_contains) == std::string::npos) continue;
    text += separator + quoted(name) + ": " + to_json(counters);
    separator = ",\n";
  }
  return text + "\n}";
}

extern "C" {

const char* ptxsim_version() { return "ptxsim 0.1 (CUDA 13.0)"; }

void ptxsim_set_options(long long seed, int race, int uninitialised) {
  const std::lock_guard lock(runtime().mutex);
  ptxsim::Options& options = runtime().options;
  options.shuffle = seed >= 0;
  options.seed = seed >= 0 ? static_cast<uint64_t>(seed) : 0;
  options.race = race != 0;
  options.uninitialised = uninitialised != 0;
}

const char* ptxsim_counters_json(const char* kernel) {
  const std::lock_guard lock(runtime().mutex);
  return keep(runtime().counters.json(kernel ? kernel : ""));
}

void ptxsim_reset_counters() {
  const std::lock_guard lock(runtime().mutex);
  runtime().counters.clear();
}

const char* ptxsim_last_report() {
  const std::lock_guard lock(runtime().mutex);
  return keep(runtime().report);
}

void ptxsim_reset_error() {
  const std::lock_guard lock(runtime().mutex);
  runtime().sticky = cudaSuccess;
  runtime().report.clear();
  runtime().streams.clear();
  cudart::last_error = cudaSuccess;
}

void ptxsim_fail_launch(const char* name, int nth) {
  const std::lock_guard lock(runtime().mutex);
  runtime().faults.fail_launch(name, nth);
}

void ptxsim_fail_malloc(int nth) {
  const std::lock_guard lock(runtime().mutex);
  runtime().faults.fail_malloc(nth);
}

}  // extern "C"
