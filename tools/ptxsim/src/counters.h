// Counts the memory traffic of a launch.
#pragma once

#include <cstdint>
#include <vector>

#include "machine.h"

namespace ptxsim {

constexpr uint32_t kSectorBytes = 32;
constexpr uint32_t kNumBanks = 32;
constexpr uint32_t kBankBytes = 4;

// A set of sectors of the arena that is cheap to empty.
class SectorSet {
 public:
  SectorSet();
  void add(uint64_t first, uint64_t last);  // sector numbers, both included
  uint64_t take_count();                    // and empties the set

 private:
  uint64_t* words_;
  std::vector<uint64_t> touched_;  // words that are not zero
};

class TrafficCounter {
 public:
  // One warp instruction: lane l accesses `bytes` (a power of two, aligned to it) at addresses[l].
  void global(Mask mask, const uint64_t* addresses, uint32_t bytes, bool load, bool store);
  // Offsets in shared memory. Accesses of 8 bytes go through in half-warps, of 16 bytes in quarter-warps; each of them
  // is one wavefront if its 4-byte words fall into different banks or are the same word.
  void shared(Mask mask, const uint64_t* offsets, uint32_t bytes);

  // Adds this launch to `totals` and starts anew.
  void end_launch(Counters& totals);

 private:
  uint64_t sectors(Mask mask, const uint64_t* addresses, uint32_t bytes, SectorSet* load, SectorSet* store);

  Counters counts_;
  SectorSet loaded_, stored_;
};

// True if lane l is at addresses[0] + l * bytes for all 32 lanes.
inline bool is_contiguous(const uint64_t* addresses, uint32_t bytes) {
  uint64_t difference = 0;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    difference |= addresses[lane] ^ (addresses[0] + lane * uint64_t{bytes});
  }
  return difference == 0;
}

// Wavefronts of one group of lanes.
uint32_t wavefronts(Mask group, const uint64_t* offsets, uint32_t bytes);

}  // namespace ptxsim
