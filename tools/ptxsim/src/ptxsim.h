// ptxsim: a functional interpreter of PTX. What the CUDA runtime needs of it (cudart/) and what its tests call.
//
// It executes the PTX that nvcc embedded in a program, one block after the other, a warp at a time in lock step. It
// says what a kernel computes and whether it keeps the rules (bounds, races, initialised reads, masks), and counts what
// a roofline needs. It says nothing about time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptxsim {

// A broken rule of the program under test, or PTX that this interpreter does not know. `kind` is a stable word for
// tests: "unknown-opcode", "syntax", "out-of-bounds", "misaligned", "race", "uninitialised", "deadlock", "mask",
// "divergence", "async", "trap", "launch".
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& message) : std::runtime_error(message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct Options {
  bool shuffle = false;  // warps and blocks in an order drawn from `seed`
  uint64_t seed = 0;
  bool race = false;           // data races in shared memory, and between blocks in global memory
  bool uninitialised = false;  // reads of shared or freshly allocated global bytes that nothing wrote
  bool counters = true;

  // PTXSIM_SEED=n (shuffles), PTXSIM_RACE=1 (race and uninitialised), PTXSIM_UNINITIALISED=0|1, PTXSIM_COUNTERS=0|1.
  static Options from_environment();
};

// Totals of the launches of one kernel.
struct Counters {
  uint64_t launches = 0;
  uint64_t block_threads = 0;         // of the largest block
  uint64_t dynamic_shared_bytes = 0;  // the most that a launch asked for
  uint64_t warp_instructions = 0;
  uint64_t thread_instructions = 0;
  uint64_t global_load_bytes = 0;    // asked for by lanes, cp.async included
  uint64_t global_store_bytes = 0;   // atomics count in both
  uint64_t global_load_sectors = 0;  // distinct 32-byte sectors of each warp instruction
  uint64_t global_store_sectors = 0;
  uint64_t unique_load_sectors = 0;  // distinct sectors of a launch: what must come from memory at least once
  uint64_t unique_store_sectors = 0;
  uint64_t shared_accesses = 0;  // warp-wide shared-memory instructions
  uint64_t shared_wavefronts = 0;
  uint64_t bank_conflicts = 0;                          // wavefronts beyond those that the width of the access needs
  std::map<std::string, uint64_t> matrix_instructions;  // "mma.m16n8k16.bf16" -> warp instructions
};

struct Parameter {
  std::string name;
  uint32_t offset = 0, size = 0;  // in the packed parameter block
};

struct KernelInfo {
  std::string name;  // mangled
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t max_threads = 1024;  // .maxntid, product
};

class Module {
 public:
  // Parses PTX text; kernels are decoded at their first launch. Throws Error("syntax" | "unknown-opcode").
  static std::unique_ptr<Module> parse(std::string_view ptx);
  ~Module();

  std::vector<std::string> kernel_names() const;
  const KernelInfo* find(const std::string& name) const;  // null if absent
  // Address of a module-level .global or .const variable, null if absent; `size` in bytes.
  void* variable(const std::string& name, size_t* size) const;

  struct LaunchConfig {
    Dim3 grid, block, cluster;
    uint32_t dynamic_shared_bytes = 0;
  };
  // Runs the grid to its end. `parameters`: parameter_bytes, laid out as KernelInfo says. Throws Error with a report
  // that names the kernel, the block, the thread, the PTX instruction and the .cu line (from .loc).
  void launch(const std::string& name, const LaunchConfig& config, const std::byte* parameters, const Options& options,
              Counters& counters);

 private:
  Module();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Device memory: one range of host memory in which every buffer stands between red zones. New memory is filled with
// 0xff, a NaN in every float format.
void* allocate(size_t num_bytes);  // null if the device's memory (PTXSIM_MEMORY_BYTES, 8 GiB) is used up
bool deallocate(void* pointer);    // false if it is not the start of a buffer
bool is_device_pointer(const void* pointer);
size_t allocated_bytes();
// Tells the uninitialised-read check that the host wrote these bytes.
void mark_initialised(const void* pointer, size_t num_bytes);

}  // namespace ptxsim
