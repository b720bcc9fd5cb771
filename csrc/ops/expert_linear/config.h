// Which expert and which of its rows a block of expert_linear works on: pure functions of expert_begin, which lies in
// the device's memory, so the grid is made for the worst case and surplus blocks leave at once.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace eagle31rt::cuda {

struct ExpertTile {
  int32_t expert;
  int32_t first_place;
  int32_t num_rows;  // 0: the block has nothing to do
};

// Tiles of `rows` places. Expert e has the indices from expert_begin[e] / rows + e on: these starts lie at least as far
// apart as the expert has tiles, so that an index names one tile and finds it by bisection, without a table.
constexpr int64_t num_expert_tiles(int64_t num_places, int64_t num_experts, int64_t rows) {
  return num_places / rows + num_experts;
}

E31_HOST_DEVICE static inline ExpertTile find_expert_tile(const int32_t* expert_begin, int32_t num_experts,
                                                          int32_t rows, int32_t index) {
  int32_t low = 0, high = num_experts;  // the start of low is at most index, that of high is not
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (expert_begin[middle] / rows + middle <= index ? low : high) = middle;
  }
  const int32_t begin = expert_begin[low], end = expert_begin[low + 1];
  const int32_t first = begin + (index - (begin / rows + low)) * rows;
  const int32_t rest = end - first;
  return {low, first, rest < 0 ? 0 : rest < rows ? rest : rows};
}

// Up to so many places a block looks at one place and leaves if no tile starts there: fewer blocks than experts. A
// decode step of 8 of 128 experts has 8 row tiles instead of 128.
E31_HOST_DEVICE static inline ExpertTile find_tile_at(const int32_t* expert_begin, int32_t num_experts, int32_t rows,
                                                      int32_t place) {
  int32_t low = 0, high = num_experts;  // expert_begin[low] <= place < expert_begin[high]
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (expert_begin[middle] <= place ? low : high) = middle;
  }
  const int32_t rest = expert_begin[low + 1] - place;
  return {low, place, (place - expert_begin[low]) % rows != 0 ? 0 : rest < rows ? rest : rows};
}

}  // namespace eagle31rt::cuda
