// The state a block starts with: registers, shared and local memory.
#include <algorithm>
#include <bit>
#include <cstring>

#include "access.h"
#include "checker.h"
#include "memory.h"
#include "scheduler.h"

namespace ptxsim {
namespace {

uint32_t pick(const Dim3& dim, uint32_t axis) { return axis == 0 ? dim.x : axis == 1 ? dim.y : dim.z; }

Dim3 position(uint64_t linear, const Dim3& size) {
  const uint64_t row = linear / size.x;
  return {static_cast<uint32_t>(linear % size.x), static_cast<uint32_t>(row % size.y),
          static_cast<uint32_t>(row / size.y)};
}

}  // namespace

BlockRunner::BlockRunner(Launch& launch, const Options& options)
    : kernel_(*launch.kernel),
      launch_(launch),
      options_(options),
      random_(options.seed),
      num_threads_(static_cast<uint32_t>(launch.block.count())) {
  static thread_local std::byte* const shared_window = reserve_zeroed(kSharedWindowBytes);
  shared_ = shared_window;
  const uint32_t num_warps = (num_threads_ + kWarpSize - 1) / kWarpSize;
  const size_t stride = kernel_.register_bytes;
  register_memory_.resize(num_warps * stride + 64);
  local_memory_.resize(size_t{num_warps} * kWarpSize * kernel_.local_bytes + 64);
  const auto aligned = [](std::byte* p) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64);
  };
  block_.launch = &launch;
  block_.shared = shared_;
  block_.shared_bytes = kernel_.shared_bytes + launch.dynamic_shared_bytes;
  block_.local = aligned(local_memory_.data());
  block_.local_bytes = uint64_t{num_warps} * kWarpSize * kernel_.local_bytes;
  block_.warps.resize(num_warps);
  for (uint32_t i = 0; i < num_warps; ++i) {
    block_.warps[i].block = &block_;
    block_.warps[i].index = i;
    block_.warps[i].registers = aligned(register_memory_.data()) + i * stride;
    write_constants(block_.warps[i]);
  }
}

void BlockRunner::write_constants(Warp& warp) {
  for (const Kernel::Constant& constant : kernel_.constants) {
    if (constant.bytes == 0) warp.predicate(constant.reg) = static_cast<Mask>(constant.value);
    for (size_t lane = 0; lane < kWarpSize; ++lane) {
      std::memcpy(warp.registers + constant.reg + lane * constant.bytes, &constant.value, constant.bytes);
    }
  }
}

void BlockRunner::reset(uint64_t index) {
  block_.linear_index = index;
  block_.index = position(index, launch_.grid);
  block_.barriers = {};
  std::memset(shared_, 0xff, block_.shared_bytes);
  std::memset(block_.local, 0xff, block_.local_bytes);
  live_threads_ = num_threads_;
  if (launch_.checker != nullptr) launch_.checker->begin_block(block_);
  for (Warp& warp : block_.warps) {
    const uint32_t lanes = std::min<uint32_t>(kWarpSize, num_threads_ - warp.index * kWarpSize);
    warp.live = lanes == kWarpSize ? kFullMask : (Mask{1} << lanes) - 1;
    warp.waiting = warp.at_barrier = warp.carry = 0;
    warp.pc.fill(0);
    warp.copies.clear();
    warp.committed_groups.fill(0);
    write_specials(warp);
  }
}

void BlockRunner::write_specials(Warp& warp) {
  for (const Kernel::Special& special : kernel_.specials) {
    const bool wide = special.which == SpecialRegister::kLocalBase || special.which == SpecialRegister::kParameterBase;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const uint64_t value = special_value(special.which, warp.thread(lane));
      if (wide)
        warp.lanes<uint64_t>(special.reg)[lane] = value;
      else
        warp.lanes<uint32_t>(special.reg)[lane] = static_cast<uint32_t>(value);
    }
  }
}

uint64_t BlockRunner::special_value(SpecialRegister which, uint32_t thread) const {
  using S = SpecialRegister;
  const Dim3 &grid = launch_.grid, &cluster = launch_.cluster, &block = block_.index;
  const Dim3 within{block.x % cluster.x, block.y % cluster.y, block.z % cluster.z};
  const auto number = static_cast<uint32_t>(which);
  if (which < S::kLaneId) {
    const Dim3 triples[] = {position(thread, launch_.block),
                            launch_.block,
                            block,
                            grid,
                            {block.x / cluster.x, block.y / cluster.y, block.z / cluster.z},
                            {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z},
                            within,
                            cluster};
    return pick(triples[number / 3], number % 3);
  }
  const uint32_t lane = thread % kWarpSize;
  const uint64_t below = (uint64_t{1} << lane) - 1, up_to = (uint64_t{2} << lane) - 1;
  // clang-format off
  switch (which) {
    case S::kLaneId: return lane;
    case S::kWarpId: return thread / kWarpSize;
    case S::kNwarpId: return block_.warps.size();
    case S::kNsmId: case S::kGridId: return 1;
    case S::kLanemaskEq: return below + 1;
    case S::kLanemaskLe: return up_to;
    case S::kLanemaskLt: return below;
    case S::kLanemaskGe: return ~below;
    case S::kLanemaskGt: return ~up_to;
    case S::kDynamicSharedBytes: return launch_.dynamic_shared_bytes;
    case S::kTotalSharedBytes: return block_.shared_bytes;
    case S::kClusterCtarank: return within.x + cluster.x * (within.y + uint64_t{cluster.y} * within.z);
    case S::kClusterNctarank: return cluster.count();
    case S::kIsExplicitCluster: return cluster.count() > 1;
    case S::kLocalBase: return reinterpret_cast<uint64_t>(block_.local) + uint64_t{thread} * kernel_.local_bytes;
    case S::kParameterBase: return reinterpret_cast<uint64_t>(launch_.parameters);
    default: return 0;  // %smid
  }
  // clang-format on
}

}  // namespace ptxsim
