// Which tile fc_norm takes on CUDA: a pure function of the shape. The bits do not depend on it: every tile runs each
// captured chunk as one accumulation chain in ascending k and adds the scaled chunks in ascending order.
#pragma once

#include <cstdint>

#include "ops/linear/config.h"

namespace eagle31rt::cuda {

enum class FcNormTile {
  kRows16,      // 16 x 32 outputs
  kRows64,      // 64 x 32
  kRows64Wide,  // 64 x 128
};

struct FcNormConfig {
  FcNormTile tile;
  int64_t num_row_tiles;
  int64_t num_column_tiles;
  int64_t num_blocks() const { return num_row_tiles * num_column_tiles; }
};

// One kernel computes whole outputs, so only tiles fill the multiprocessors: 32 columns make 128 blocks of the 4096
// outputs of a draft for Llama-3.1-8B. Up to 32 rows tiles of 16: a tile of 64 rows issues 530 instructions a KiB of
// weights whether rows are there or not, one of 16 rows 135, and the second finds its weights in L2. The wide tile,
// which reads and rounds activations a quarter as often, once it has a block for every second multiprocessor.
constexpr FcNormConfig choose_fc_norm_config(int64_t num_rows, int64_t hidden_size) {
  if (num_rows <= 32) return {FcNormTile::kRows16, divide_up(num_rows, 16), divide_up(hidden_size, 32)};
  const int64_t num_row_tiles = divide_up(num_rows, 64);
  const int64_t num_wide_tiles = divide_up(hidden_size, 128);
  if (num_row_tiles * num_wide_tiles >= kMultiprocessors / 2) {
    return {FcNormTile::kRows64Wide, num_row_tiles, num_wide_tiles};
  }
  return {FcNormTile::kRows64, num_row_tiles, divide_up(hidden_size, 32)};
}

}  // namespace eagle31rt::cuda
