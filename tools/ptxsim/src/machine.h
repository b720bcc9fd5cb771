// The machine that decoded PTX runs on: instructions, warps, blocks, and a launch.
//
// A register is an array of 32 lanes at a byte offset of its warp's register file: uint8/16/32/64[32] by its width, or
// one 32-bit mask for a predicate. Immediates, special registers and addresses of symbols are registers too, written
// once per launch or block, so that an instruction has no operand kinds to tell apart.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ptxsim.h"

namespace ptxsim {

using Mask = uint32_t;  // one bit per lane
constexpr int kWarpSize = 32;
constexpr Mask kFullMask = ~Mask{0};
constexpr uint32_t kNone = ~uint32_t{0};
constexpr int kNumBarriers = 16;
constexpr int kMaxOperands = 16;

struct Instruction;
struct Warp;
struct Block;
struct Launch;
class Checker;
class TrafficCounter;

// Executes an instruction for the lanes of `mask`, which is not empty.
using Execute = void (*)(Warp& warp, const Instruction& instruction, Mask mask);

enum class Flow : uint8_t {
  kPlain,
  kBranch,
  kIndexedBranch,  // operand 0: the index, into Kernel::branch_targets from `mode` on, `mode2` of them
  kExit,
  kSync,     // waits for all lanes of the member mask (register `members`, kNone: all 32)
  kBarrier,  // operand 0: the barrier's number, 1: the number of threads if `mode2`; see BarrierMode
};

enum BarrierMode : uint32_t { kBarrierAligned = 1, kBarrierArriveOnly = 2, kBarrierReduce = 4 };

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

struct Instruction {
  Execute execute = nullptr;
  uint32_t guard = kNone;  // predicate register
  Mask guard_invert = 0;   // all ones for @!p
  Flow flow = Flow::kPlain;
  uint8_t counted = 1;  // 0 for a step that the decoder added, such as the widening of a loaded byte
  uint8_t address_bytes = 8;
  Space space = Space::kGeneric;
  uint32_t address = kNone;  // register of the base address, of address_bytes
  int64_t immediate = 0;     // added to the address
  int32_t target = -1;       // index of an instruction
  uint32_t members = kNone;
  uint32_t mode = 0, mode2 = 0;                     // what they mean is up to the opcode
  std::array<uint32_t, kMaxOperands> operand = {};  // registers: destinations, then sources
};

// Thrown inside of an instruction; the launch adds where it happened and throws Error.
struct Fault {
  const char* kind;
  std::string message;
  int lane = -1;
};

// Copies that cp.async issued and that no wait has completed; one record per warp instruction.
struct AsyncCopy {
  const Instruction* instruction = nullptr;
  Mask pending = 0;
  uint32_t bytes = 0;
  std::array<uint32_t, kWarpSize> destination;  // offset in shared memory
  std::array<const std::byte*, kWarpSize> source;
  std::array<uint32_t, kWarpSize> source_bytes;  // the rest is filled with zeros
  std::array<uint32_t, kWarpSize> group;
};

struct Warp {
  Block* block = nullptr;
  uint32_t index = 0;
  std::byte* registers = nullptr;
  Mask live = 0;
  Mask waiting = 0;     // at a kSync or an aligned kBarrier instruction, for other lanes of the warp
  Mask at_barrier = 0;  // in a barrier of the block
  std::array<int32_t, kWarpSize> pc;
  std::array<uint8_t, kWarpSize> barrier;     // number of the barrier a lane is in
  std::array<int32_t, kWarpSize> barrier_pc;  // its instruction
  Mask carry = 0;                             // the condition code of add.cc
  std::vector<AsyncCopy> copies;
  std::array<uint32_t, kWarpSize> committed_groups;

  template <class T>
  T* lanes(uint32_t reg) {
    return reinterpret_cast<T*>(registers + reg);
  }
  Mask& predicate(uint32_t reg) { return *reinterpret_cast<Mask*>(registers + reg); }
  uint32_t thread(int lane) const { return index * kWarpSize + static_cast<uint32_t>(lane); }
};

struct Barrier {
  uint32_t arrived_threads = 0;  // lanes
  uint32_t arrived_counted = 0;  // as bar.sync a, b counts: 32 for a warp
  uint32_t expected = 0;         // 0: all live threads of the block
  uint32_t warps = 0;            // bit per warp that has arrived
  uint32_t sum = 0;              // of the predicates of bar.red
  uint32_t participants = 0;
  uint32_t result_sum = 0, result_participants = 0;  // of the phase that ended last
};

struct Block {
  Launch* launch = nullptr;
  Dim3 index;
  uint64_t linear_index = 0;
  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;
  std::byte* local = nullptr;
  uint64_t local_bytes = 0;  // of all threads
  std::vector<Warp> warps;
  std::array<Barrier, kNumBarriers> barriers;
};

struct Kernel;

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block, cluster;
  uint32_t dynamic_shared_bytes = 0;
  const std::byte* parameters = nullptr;
  uint32_t parameter_bytes = 0;
  TrafficCounter* traffic = nullptr;  // null: not counted
  Checker* checker = nullptr;         // null: not checked
  uint64_t clock = 0;                 // what %clock reads
  uint64_t warp_instructions = 0, thread_instructions = 0;
  std::vector<uint64_t> matrix_instructions;  // by Kernel::matrix_names
};

}  // namespace ptxsim
