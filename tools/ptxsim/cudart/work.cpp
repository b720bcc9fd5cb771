#include "work.h"

#include <algorithm>
#include <cstring>

#include "graph.h"
#include "runtime.h"

namespace cudart {
namespace {

cudaError_t error_code(const std::string& kind) {
  if (kind == "out-of-bounds") return cudaErrorIllegalAddress;
  if (kind == "misaligned") return cudaErrorMisalignedAddress;
  if (kind == "unknown-opcode" || kind == "syntax") return cudaErrorInvalidPtx;
  return cudaErrorLaunchFailure;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Still within live memory when the operation's turn comes: a buffer may have been freed since it was queued.
bool check_range(Runtime& runtime, const char* what, const void* pointer, size_t bytes) {
  const std::string problem = runtime.memory.why_out_of_bounds(pointer, bytes);
  if (problem.empty()) return true;
  runtime.fail(cudaErrorIllegalAddress, std::string("out-of-bounds: a queued ") + what + " touches " + problem);
  return false;
}

void run(Runtime& runtime, const KernelWork& work) {
  const Function& function = *work.function;
  if (runtime.faults.launch_fails(function)) {
    runtime.fail(cudaErrorLaunchFailure, "launch: kernel " + function.display + " failed as ordered (fault injection)");
    return;
  }
  try {
    function.binary->module->launch(function.name, work.config, work.parameters.data(), runtime.options,
                                    runtime.counters.of(function.display));
  } catch (const ptxsim::Error& error) {
    runtime.fail(error_code(error.kind()), replace_all(describe(error), function.name, function.display));
  }
}

void run(Runtime& runtime, const CopyWork& work) {
  const size_t destination_bytes = span(work.destination_pitch, work.width, work.height);
  if (!check_range(runtime, "copy", work.destination, destination_bytes)) return;
  if (!work.staged && !check_range(runtime, "copy", work.source, span(work.source_pitch, work.width, work.height))) {
    return;
  }
  auto* destination = static_cast<std::byte*>(work.destination);
  const auto* source = work.staged ? work.staged->data() : static_cast<const std::byte*>(work.source);
  const bool device = ptxsim::is_device_pointer(destination);
  for (size_t row = 0; row < work.height; ++row) {
    std::memmove(destination, source, work.width);
    if (device) ptxsim::mark_initialised(destination, work.width);
    destination += work.destination_pitch;
    source += work.source_pitch;
  }
}

void run(Runtime& runtime, const FillWork& work) {
  if (!check_range(runtime, "memset", work.destination, span(work.pitch, work.width, work.height))) return;
  auto* destination = static_cast<std::byte*>(work.destination);
  for (size_t row = 0; row < work.height; ++row) {
    std::memset(destination, work.value, work.width);
    ptxsim::mark_initialised(destination, work.width);
    destination += work.pitch;
  }
}

void run(Runtime& runtime, const HostWork& work) { runtime.run_on_host(work.function, work.data); }

void run(Runtime& runtime, const ReleaseWork& work) { runtime.memory.release(work.start); }

void run(Runtime&, const RecordWork& work) {
  work.recording->when = std::chrono::steady_clock::now();
  work.recording->done = true;
}

void run(Runtime&, const WaitWork&) {}  // the queue has seen to it

void run(Runtime& runtime, const GraphWork& work) { run_nodes(runtime, *work.nodes); }

}  // namespace

void execute(Runtime& runtime, const Work& work) {
  std::visit([&](const auto& item) { run(runtime, item); }, work);
}

}  // namespace cudart
