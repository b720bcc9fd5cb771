// How the CPU cuts the rows of linear and expert_linear into groups: pure functions, so that a test and a bench can
// count how often weights are read. A group streams its weight once.
#pragma once

#include <cstdint>

namespace eagle31rt {

struct RowGroups {
  int64_t block_rows;  // most rows of the panel kernel (kMaxBlockRows of the instruction set: 6 or 12)
  int64_t in_features;
  int64_t num_panels;  // of all weights of the call
  int num_threads;
};

// Floats of laid-out input a thread keeps: 384 KiB, so that input and one panel share a second-level cache of 512 KiB
// or more.
constexpr int64_t kGroupFloats = 96 * 1024;
constexpr int64_t kMaxGroupBlocks = 16;

static inline int64_t most_group_rows(const RowGroups& groups) {
  const int64_t fitting = kGroupFloats / groups.in_features / groups.block_rows;
  return groups.block_rows * (fitting < 1 ? 1 : fitting > kMaxGroupBlocks ? kMaxGroupBlocks : fitting);
}

// Every thread lays out the groups it works on, at an eighth of the cost of a panel: with fewer than 8 panels a thread,
// smaller groups, so that threads work on different ones.
static inline int64_t num_row_groups(const RowGroups& groups, int64_t num_rows) {
  const int64_t fewest = (num_rows + most_group_rows(groups) - 1) / most_group_rows(groups);
  const int64_t most = num_rows / groups.block_rows;
  int64_t wanted = 8 * groups.num_threads / groups.num_panels;
  wanted = wanted > most ? most : wanted;
  return wanted > fewest ? wanted : fewest;
}

}  // namespace eagle31rt
