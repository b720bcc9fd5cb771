// A decoded kernel.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"

namespace ptxsim {

// Triples of x, y, z first.
enum class SpecialRegister : uint8_t {
  // clang-format off
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ,
  kClusterIdX, kClusterIdY, kClusterIdZ, kNclusterIdX, kNclusterIdY, kNclusterIdZ,
  kClusterCtaidX, kClusterCtaidY, kClusterCtaidZ, kClusterNctaidX, kClusterNctaidY, kClusterNctaidZ,
  kLaneId, kWarpId, kNwarpId, kSmId, kNsmId, kGridId,
  kLanemaskEq, kLanemaskLe, kLanemaskLt, kLanemaskGe, kLanemaskGt, kDynamicSharedBytes, kTotalSharedBytes,
  kClusterCtarank, kClusterNctarank, kIsExplicitCluster,
  // clang-format on
  kLocalBase,      // 64 bits: address of the thread's local memory
  kParameterBase,  // 64 bits: address of the kernel's parameters
};

struct SourceLine {
  uint32_t file = 0, line = 0;                  // .loc; file 0: unknown
  uint32_t inlined_file = 0, inlined_line = 0;  // where that function was inlined
};

struct InstructionText {
  std::string_view text;
  uint32_t ptx_line = 0;
  SourceLine source;
};

struct Kernel {
  const KernelInfo* info = nullptr;
  std::vector<Instruction> code;
  std::vector<InstructionText> text;  // one per instruction
  std::vector<int32_t> branch_targets;
  std::vector<std::string> matrix_names;
  const std::map<uint32_t, std::string>* files = nullptr;

  uint32_t register_bytes = 0;  // of a warp
  struct Constant {
    uint32_t reg, bytes;
    uint64_t value;
  };
  std::vector<Constant> constants;
  struct Special {
    uint32_t reg;
    SpecialRegister which;
  };
  std::vector<Special> specials;
  uint32_t local_bytes = 0;   // of a thread
  uint32_t shared_bytes = 0;  // static, with padding up to the dynamic part
};

}  // namespace ptxsim
