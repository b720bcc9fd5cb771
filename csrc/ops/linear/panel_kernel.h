// The inner kernel of linear: a block of up to kMaxBlockRows rows times some pieces of one panel.
//
// Every output is one vector lane whose sum runs over k in ascending order, one multiply_add each, whatever the number
// of rows; so a row's bits do not depend on the block it falls in. Sums are exact floats when they pass through the
// tile, so splitting the k loop changes nothing either.
#pragma once

#include <cstdint>

#include "ops/linear/packed_weight.h"
#include "ops/linear/panel_vectors.h"

namespace eagle31rt::E31_ISA {

struct KernelArguments {
  const float* input;   // [num_k, rows]: the rows of the block side by side, so that one stream feeds all broadcasts
  const void* weights;  // [num_k, kPanelWidth]
  int64_t num_k;
  float* tile;            // [rows, kPanelWidth], the running sums
  bool continues;         // the tile holds the sums of smaller k
  const char* prefetch;   // weights that will be read next ...
  int64_t prefetch_step;  // ... of which this call fetches num_k * prefetch_step bytes into the cache
};

template <typename Weights, int kRows, int kPiecesAtOnce>
inline void multiply_pieces(const KernelArguments& a, int first_piece) {
  using Element = typename Weights::Element;
  constexpr bool kTwoLines = sizeof(Element) * kPanelWidth > 64;
  Vec sum[kRows][kPiecesAtOnce][2];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPiecesAtOnce; ++p) {
      const float* tile = a.tile + r * kPanelWidth + (first_piece + p) * kVecWidth;
      sum[r][p][0] = a.continues ? vec_load(tile) : vec_zero();
      sum[r][p][1] = a.continues ? vec_load(tile + 16) : vec_zero();
    }
  }
  const float* input = a.input;
  const Element* row = static_cast<const Element*>(a.weights);
  const char* prefetch = a.prefetch;
  for (int64_t k = 0; k < a.num_k; ++k) {
    __builtin_prefetch(prefetch);
    if (kTwoLines) __builtin_prefetch(prefetch + 64);
    prefetch += a.prefetch_step;
    for (int p = 0; p < kPiecesAtOnce; ++p) {
      Vec first, second;
      Weights::load_pair(row, first_piece + p, first, second);
      for (int r = 0; r < kRows; ++r) {
        const Vec x = vec_broadcast(input + r);
        sum[r][p][0] = vec_multiply_add(x, first, sum[r][p][0]);
        sum[r][p][1] = vec_multiply_add(x, second, sum[r][p][1]);
      }
    }
    input += kRows;
    row += kPanelWidth;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPiecesAtOnce; ++p) {
      float* tile = a.tile + r * kPanelWidth + (first_piece + p) * kVecWidth;
      vec_store(tile, sum[r][p][0]);
      vec_store(tile + 16, sum[r][p][1]);
    }
  }
}

// Few rows take several pieces at once: two accumulators a row would leave the fused multiply-add units waiting.
constexpr int pieces_at_once(int rows) {
  if (kPieces == 4) return rows == 1 ? 4 : rows == 2 ? 2 : 1;
  if (kPieces == 2) return rows <= 3 ? 2 : 1;
  return 1;
}

constexpr int num_passes(int rows) { return kPieces / pieces_at_once(rows); }

template <typename Weights, int kRows>
void multiply_panel(const KernelArguments& arguments) {
  KernelArguments a = arguments;
  for (int piece = 0; piece < kPieces; piece += pieces_at_once(kRows)) {
    multiply_pieces<Weights, kRows, pieces_at_once(kRows)>(a, piece);
    a.prefetch += a.num_k * a.prefetch_step;
  }
}

using PanelKernel = void (*)(const KernelArguments&);

template <typename Weights, int kRows = kMaxBlockRows>
PanelKernel panel_kernel(int rows) {
  if constexpr (kRows == 1) {
    return multiply_panel<Weights, 1>;
  } else {
    return rows == kRows ? multiply_panel<Weights, kRows> : panel_kernel<Weights, kRows - 1>(rows);
  }
}

inline PanelKernel panel_kernel(DType dtype, int rows) {
  if (dtype == DType::kBFloat16) return panel_kernel<BFloat16Weights>(rows);
  if (dtype == DType::kFloat16) return panel_kernel<Float16Weights>(rows);
  return panel_kernel<Float32Weights>(rows);
}

}  // namespace eagle31rt::E31_ISA
