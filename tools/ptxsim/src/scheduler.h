// Executes the blocks of a launch, one after the other.
//
// Within a warp, the lanes at the lowest address step together; that is where branches meet again in the order in which
// nvcc lays out code. Nothing relies on it: an instruction that needs several lanes (shfl.sync, mma.sync, bar.sync)
// waits until all lanes of its member mask have arrived at it. A warp runs until it has to wait, or its turn is over.
#pragma once

#include <random>
#include <vector>

#include "kernel.h"
#include "machine.h"

namespace ptxsim {

class BlockRunner {
 public:
  BlockRunner(Launch& launch, const Options& options);

  // Runs block `index` of the grid, counted with x fastest. Throws Error.
  void run(uint64_t index);

 private:
  struct Group {
    int32_t pc;
    Mask mask;
    int32_t limit;  // least pc of the lanes that are not in the group
  };

  void reset(uint64_t index);
  void write_constants(Warp& warp);
  void write_specials(Warp& warp);
  uint64_t special_value(SpecialRegister which, uint32_t thread) const;

  int64_t run_warp(Warp& warp, int64_t budget);  // instructions issued
  Group lowest_group(const Warp& warp, Mask ready) const;
  int64_t run_group(Warp& warp, Group& group, int64_t budget);
  bool run_special(Warp& warp, Group& group, Mask active);
  void split(Warp& warp, const Group& group, Mask taken, int32_t target);
  void indexed_branch(Warp& warp, const Group& group, Mask active);
  void exit_lanes(Warp& warp, const Group& group, Mask active);
  void arrive_at_sync(Warp& warp, const Group& group, Mask active);
  Mask members(Warp& warp, const Instruction& instruction, int lane) const;

  // Barriers: barriers.cpp
  void arrive_at_barrier(Warp& warp, const Group& group, Mask active);
  void enter_barrier(Warp& warp, int32_t pc, Mask lanes);
  void retry_waiting(Warp& warp);
  void open_complete_barriers();
  void open_barrier(uint8_t number);

  // Reports: report.cpp
  [[noreturn]] void report(const Warp& warp, int32_t pc, const Fault& fault) const;
  [[noreturn]] void report_stuck() const;
  void check_copies_done();

  const Kernel& kernel_;
  Launch& launch_;
  const Options& options_;
  std::mt19937_64 random_;
  Block block_;
  std::vector<std::byte> register_memory_;
  std::byte* shared_;
  std::vector<std::byte> local_memory_;
  uint32_t num_threads_;
  uint32_t live_threads_ = 0;
};

// The instruction, its PTX line and its .cu line.
std::string describe_instruction(const Kernel& kernel, int32_t pc);

void run_launch(Launch& launch, const Options& options);

}  // namespace ptxsim
