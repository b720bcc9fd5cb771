// What an error says: kernel, block, thread, PTX instruction, .cu line.
#include <bit>

#include "lanes.h"
#include "scheduler.h"

namespace ptxsim {
namespace {

std::string text_of(const Dim3& dim) {
  return "(" + std::to_string(dim.x) + ", " + std::to_string(dim.y) + ", " + std::to_string(dim.z) + ")";
}

std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!blank)
      result += c;
    else if (!result.empty() && result.back() != ' ')
      result += ' ';
  }
  return result;
}

std::string file_line(const Kernel& kernel, uint32_t file, uint32_t line) {
  const auto known = kernel.files->find(file);
  const std::string name = known == kernel.files->end() ? "file " + std::to_string(file) : known->second;
  return name + ":" + std::to_string(line);
}

}  // namespace

std::string describe_instruction(const Kernel& kernel, int32_t pc) {
  const InstructionText& text = kernel.text[static_cast<size_t>(pc)];
  std::string result = "PTX line " + std::to_string(text.ptx_line) + ": " + one_line(text.text);
  if (text.source.file == 0) return result;
  result += "\n  at " + file_line(kernel, text.source.file, text.source.line);
  if (text.source.inlined_file != 0)
    result += ", inlined at " + file_line(kernel, text.source.inlined_file, text.source.inlined_line);
  return result;
}

void BlockRunner::report(const Warp& warp, int32_t pc, const Fault& fault) const {
  std::string message = std::string(fault.kind) + ": " + fault.message + "\n  kernel " + kernel_.info->name +
                        ", block " + text_of(block_.index);
  if (fault.lane >= 0) {
    const uint32_t thread = warp.thread(fault.lane), row = thread / launch_.block.x;
    message += ", thread " + text_of({thread % launch_.block.x, row % launch_.block.y, row / launch_.block.y});
  }
  message += ", warp " + std::to_string(warp.index) + (fault.lane >= 0 ? ", lane " + std::to_string(fault.lane) : "");
  message += "\n  " + describe_instruction(kernel_, pc);
  throw Error(fault.kind, message);
}

// No lane of the block can step: says where each waits.
void BlockRunner::report_stuck() const {
  std::string kind = "deadlock", places;
  for (const Warp& warp : block_.warps) {
    Mask rest = warp.waiting | warp.at_barrier;
    while (rest != 0) {
      const auto first = static_cast<size_t>(std::countr_zero(rest));
      const bool inside = (warp.at_barrier >> first & 1) != 0;
      const int32_t pc = inside ? warp.barrier_pc[first] : warp.pc[first];
      Mask same = 0;
      for_lanes(rest, [&](int lane) {
        const auto i = static_cast<size_t>(lane);
        const bool lane_inside = (warp.at_barrier >> lane & 1) != 0;
        same |= static_cast<Mask>(lane_inside == inside && (inside ? warp.barrier_pc[i] : warp.pc[i]) == pc) << lane;
      });
      char lanes[16];
      std::snprintf(lanes, sizeof lanes, "0x%08x", same);
      const bool barrier = kernel_.code[static_cast<size_t>(pc)].flow == Flow::kBarrier;
      if (barrier && !inside) kind = "divergence";
      places += "\n  warp " + std::to_string(warp.index) + ", lanes " + lanes +
                (inside ? " in the barrier " : " wait for other lanes ") + "at " + describe_instruction(kernel_, pc);
      rest &= ~same;
    }
  }
  const char* what = kind == "divergence"
                         ? "lanes of a warp part before bar.sync, which all of them have to execute together"
                         : "no thread of the block can go on";
  throw Error(kind,
              kind + ": " + what + "\n  kernel " + kernel_.info->name + ", block " + text_of(block_.index) + places);
}

void BlockRunner::check_copies_done() {
  for (const Warp& warp : block_.warps) {
    for (const AsyncCopy& copy : warp.copies) {
      if (copy.pending == 0) continue;
      report(warp, static_cast<int32_t>(copy.instruction - kernel_.code.data()),
             {"async", "the thread exits before it waited for its cp.async", std::countr_zero(copy.pending)});
    }
  }
}

}  // namespace ptxsim
